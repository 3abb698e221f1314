/* Two interpreters in one process, each with a GIL of its own, and a mutex between two threads of the second.
 *
 * `bridge` is locked by a thread that then wants its interpreter's GIL back, and wanted by one that keeps that GIL. */
#define READY_EXPORT
#include "../ready.h"

/* The interpreter's own, resolved when this is loaded: no headers, so that one build serves every CPython since 3.12. */
typedef struct { int type; const char *function, *message; int exit_code; } PyStatus;
typedef struct {
    int use_main_obmalloc, allow_fork, allow_exec, allow_threads, allow_daemon_threads, check_multi_interp_extensions, gil;
} PyInterpreterConfig;
typedef struct { const char *name; void *(*function)(void *, void *); int flags; const char *doc; } PyMethodDef;
enum { METH_O = 8, OWN_GIL = 2 };

extern PyStatus Py_NewInterpreterFromConfig(void **state, const PyInterpreterConfig *);
extern void *PyThreadState_Get(void);
extern void *PyThreadState_Swap(void *);
extern void *PyThreadState_New(void *interpreter);
extern void *PyThreadState_GetInterpreter(void *state);
extern void PyEval_AcquireThread(void *state);
extern void *PyEval_SaveThread(void);
extern void PyEval_RestoreThread(void *);
extern void *PyCFunction_NewEx(PyMethodDef *, void *, void *);
extern void *PyImport_AddModule(const char *);
extern int PyObject_SetAttrString(void *, const char *, void *);
extern long PyLong_AsLong(void *);
extern void *PyLong_FromLong(long);
extern int PyRun_SimpleString(const char *);

enum { EAST_LOCKED, WEST_INSIDE };
static pthread_mutex_t bridge = PTHREAD_MUTEX_INITIALIZER;
static void *states[2];

/* cross(0): locks without the GIL, then wants the GIL back. cross(1): locks with the GIL. */
static void *cross(void *self, void *side)
{
    (void)self;
    if (PyLong_AsLong(side) == 0) {
        void *state = PyEval_SaveThread();
        pthread_mutex_lock(&bridge);
        ready_gate_open(EAST_LOCKED);
        ready_gate_pass(WEST_INSIDE);
        ready_beyond_gates();
        PyEval_RestoreThread(state);
    } else {
        ready_gate_open(WEST_INSIDE);
        ready_at(&bridge, sizeof bridge);
        pthread_mutex_lock(&bridge);
    }
    pthread_mutex_unlock(&bridge);
    return PyLong_FromLong(0);
}

/* Called with the first interpreter's GIL, and returns with it. */
__attribute__((visibility("default"))) int make_interpreter(void)
{
    static PyMethodDef crossing = { "cross", cross, METH_O, 0 };
    static const PyInterpreterConfig own_gil = { .allow_threads = 1, .check_multi_interp_extensions = 1, .gil = OWN_GIL };
    void *first = PyThreadState_Get(), *state = 0;
    PyStatus status = Py_NewInterpreterFromConfig(&state, &own_gil);
    if (status.type != 0 || !state)
        return 1;
    void *function = PyCFunction_NewEx(&crossing, 0, 0), *module = PyImport_AddModule("__main__");
    int failed = !function || !module || PyObject_SetAttrString(module, "cross", function) != 0
        || PyRun_SimpleString("def east():\n    cross(0)\n\ndef west():\n    cross(1)\n") != 0;
    for (int i = 0; i < 2; i++)
        states[i] = PyThreadState_New(PyThreadState_GetInterpreter(state));
    PyThreadState_Swap(first);
    return failed;
}

/* Called without any GIL: the thread enters the second interpreter. */
__attribute__((visibility("default"))) int enter(int side)
{
    if (side == 1)
        ready_gate_pass(EAST_LOCKED);
    PyEval_AcquireThread(states[side]);
    return PyRun_SimpleString(side ? "west()" : "east()");
}
