/* Says when everybody is idle; no more. */
#define READY_EXPORT
#include "../ready.h"
