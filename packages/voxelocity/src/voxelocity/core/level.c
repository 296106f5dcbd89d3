/* Which of the levels that the library holds this processor can run. */

int loops_level(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? 2 : 1;
#else
    return 1;
#endif
}

/* Of the sources that the library was built from; see `build_loops.stamp`. */
const char *loops_stamp(void) { return STAMP; }
