/* The main thread joins a thread under a mutex that the thread takes before it ends. */
#include "../ready.h"

static pthread_mutex_t sessions = PTHREAD_MUTEX_INITIALIZER;
enum { TAKEN };

static void *closes(void *unused)
{
    ready_name("closes");
    ready_gate_pass(TAKEN);
    ready_at(&sessions, sizeof sessions);
    pthread_mutex_lock(&sessions);
    pthread_mutex_unlock(&sessions);
    return unused;
}

int main(void)
{
    pthread_t thread;
    ready_begin(2);
    pthread_create(&thread, NULL, closes, NULL);
    pthread_mutex_lock(&sessions);
    ready_gate_open(TAKEN);
    ready_beyond_gates();
    pthread_join(thread, NULL);
    pthread_mutex_unlock(&sessions);
    return 0;
}
