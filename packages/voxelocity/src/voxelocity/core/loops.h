/* What all compiled loops share: names, statuses, and the neighbors of a voxel with their sums.
 *
 * Each file is compiled once for each level of a processor, named by the macro LEVEL. Every operation rounds by itself
 * (-ffp-contract=off), so all levels give the same bits. Loops check the numbers that select memory and return a
 * status; `core/native.py` has checked dtypes and layout before. */
#ifndef VOXELOCITY_LOOPS_H
#define VOXELOCITY_LOOPS_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define GLUE_NOW(first, second) first##_##second
#define GLUE(first, second) GLUE_NOW(first, second)
/* The name of a loop at this level, and that of a loop for one stored type. */
#define LOOP(name) GLUE(name, LEVEL)
#define TYPED(name) GLUE(name, STORED_NAME)
#define TYPED_LOOP(name) LOOP(TYPED(name))

#define INLINE static inline __attribute__((always_inline))

enum { DONE = 0, NO_MEMORY = 1, OUT_OF_RANGE = 2 };

INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/* Memory for `num` numbers; NULL if there is not enough. */
INLINE float *new_floats(int64_t num) { return malloc((size_t)num * sizeof(float) + 1); }

/* NaN stays NaN. */
INLINE float clamp(float value, float low, float high) {
    value = value < low ? low : value;
    return value > high ? high : value;
}

/* Of eight labels and their shares, the label with the largest summed share; the smaller one of equals. */
INLINE uint16_t largest_share(const uint16_t *labels, const float *shares) {
    uint16_t first = labels[0], other = labels[0];
    for (int a = 1; a < 8; a++)
        if (labels[a] != first) other = labels[a];
    float first_share = 0, other_share = 0;
    int num = 0;
    for (int a = 0; a < 8; a++) {
        if (labels[a] == first) {
            first_share += shares[a];
            num++;
        } else if (labels[a] == other) {
            other_share += shares[a];
            num++;
        }
    }
    if (num == 8) { /* two classes, as almost everywhere on a border */
        if (first_share == other_share) return first < other ? first : other;
        return first_share > other_share ? first : other;
    }
    uint16_t best = labels[0];
    float best_share = -1;
    for (int a = 0; a < 8; a++) {
        float total = 0;
        for (int b = 0; b < 8; b++)
            if (labels[b] == labels[a]) total += shares[b];
        if (total > best_share || (total == best_share && labels[a] < best)) {
            best = labels[a];
            best_share = total;
        }
    }
    return best;
}

/* The sum of two values with these weights: 1 - weight and weight. */
INLINE float mix(float low, float high, float weight) { return low + weight * (high - low); }

/* The shares of eight neighbors, from the weights of those behind. The order is that of `corner` below. */
INLINE void fill_shares(float x, float y, float z, float *shares) {
    float u00 = (1 - x) * (1 - y), u01 = (1 - x) * y, u10 = x * (1 - y), u11 = x * y, u = 1 - z;
    shares[0] = u00 * u, shares[1] = u00 * z, shares[2] = u01 * u, shares[3] = u01 * z;
    shares[4] = u10 * u, shares[5] = u10 * z, shares[6] = u11 * u, shares[7] = u11 * z;
}

/* Whether all indices of an axis lie in it. */
INLINE int are_inside(const int64_t *indices, int64_t num, int64_t length) {
    int inside = 1;
    for (int64_t k = 0; k < num; k++) inside &= indices[k] >= 0 && indices[k] < length;
    return inside;
}

#endif
