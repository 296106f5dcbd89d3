/* Eight float32 at a time, from and to memory of float32 or bfloat16, and work divided among the threads of torch's
 * pool. Results do not depend on the number of threads, nor, as each lane rounds by itself, on the level. */
#ifndef VOXELOCITY_LANES_H
#define VOXELOCITY_LANES_H

#include "loops.h"

enum { LANES = 8 };
typedef float lanes __attribute__((vector_size(32)));
typedef int32_t masks __attribute__((vector_size(32)));
typedef uint32_t words __attribute__((vector_size(32)));
typedef uint16_t halves __attribute__((vector_size(16)));

INLINE lanes all_of(float value) { return (lanes){0} + value; }

INLINE lanes choose(masks where, lanes yes, lanes no) {
    return (lanes)(((masks)yes & where) | ((masks)no & ~where));
}

INLINE float sum_of(lanes value) {
    return ((value[0] + value[4]) + (value[2] + value[6])) + ((value[1] + value[5]) + (value[3] + value[7]));
}

/* To the nearest bfloat16, the even one of two; NaN stays NaN. */
INLINE words rounded_words(lanes value) {
    words bits = (words)value, is_nan = (words)(value != value);
    words rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return (rounded & ~is_nan) | (0x7fc0 & is_nan);
}

INLINE lanes load_float32(const float *from, int64_t num) {
    lanes value = {0};
    if (num == LANES)
        memcpy(&value, from, sizeof value);
    else
        for (int64_t k = 0; k < num; k++) value[k] = from[k];
    return value;
}

INLINE void store_float32(float *to, lanes value, int64_t num) {
    if (num == LANES)
        memcpy(to, &value, sizeof value);
    else
        for (int64_t k = 0; k < num; k++) to[k] = value[k];
}

INLINE lanes load_uint16(const uint16_t *from, int64_t num) {
    halves bits = {0};
    if (num == LANES)
        memcpy(&bits, from, sizeof bits);
    else
        for (int64_t k = 0; k < num; k++) bits[k] = from[k];
    return (lanes)(__builtin_convertvector(bits, words) << 16);
}

INLINE void store_uint16(uint16_t *to, lanes value, int64_t num) {
    halves bits = __builtin_convertvector(rounded_words(value), halves);
    if (num == LANES)
        memcpy(to, &bits, sizeof bits);
    else
        for (int64_t k = 0; k < num; k++) to[k] = bits[k];
}

/* Parts of some work, which threads take as they come: one that has to wait for a core delays no other. */
struct parts {
    void (*run)(const void *work, int64_t number);
    const void *work;
    int64_t num, next;
};

static void run_parts(void *given) {
    struct parts *parts = given;
    for (;;) {
        int64_t number = __atomic_fetch_add(&parts->next, 1, __ATOMIC_RELAXED);
        if (number >= parts->num) return;
        parts->run(parts->work, number);
    }
}

/* Runs all parts. `pool` is the address of `GOMP_parallel` in the library of threads that torch uses, or 0 for none. */
static void share(int64_t pool, int64_t num, void (*run)(const void *, int64_t), const void *work) {
    struct parts parts = {run, work, num, 0};
    if (pool && num > 1)
        ((void (*)(void (*)(void *), void *, unsigned, unsigned))(uintptr_t)pool)(run_parts, &parts, 0, 0);
    else
        run_parts(&parts);
}

#endif
