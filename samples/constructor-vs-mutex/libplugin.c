/* A library whose constructor registers itself with the program that loads it. */
extern void register_plugin(const char *name) __attribute__((weak));

static __attribute__((constructor)) void on_load(void)
{
    if (register_plugin)
        register_plugin("plugin");
}
