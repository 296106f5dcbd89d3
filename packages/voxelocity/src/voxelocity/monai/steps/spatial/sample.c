/* The loop of a warp: from a box of the array, with a ring of voxels from beyond it, to the result.
 *
 * The result is filled row by row: the coordinates of its voxels with the roundings that `SamplingGrid` requires, then
 * the voxels of the box, by one load for two neighbors, and their sums. */
#include "../../../core/loops.h"

enum { ZEROS, BORDER, REFLECTION };

/* a * b + c, rounded once. */
#define FUSED(a, b, c) _Generic((a), float: fmaf, double: fma)(a, b, c)
#define ROUND_DOWN(value) _Generic((value), float: floorf, double: floor)(value)

/* How the coordinates of a row's voxels are summed to positions in the array. */
typedef struct {
    const int64_t *order; /* (4,) of the products */
    int is_fused, align_corners, is_once, beyond;
    int64_t num; /* of voxels */
} Rules;

/* A box (c, x, y, z) with its ring, and the result that is filled from it; see `native_loops.Part`. */
typedef struct {
    const uint8_t *box;
    const float *scale; /* (c, 2) */
    float *out;
    const int64_t *shape, *steps;
    int is_float; /* else int16 if interpolated, uint8 if not */
} Part;

/* Scratch of a row. */
typedef struct {
    float *coordinates, *moved, *weights, *row; /* moved and weights (3, n), for each axis */
    uint32_t *place;                            /* of the first neighbor in the box */
    void *corners;                              /* (4, 2 * n) */
} Scratch;

/* Sums of a row whose voxels differ only along the last axis. */
static void sum_row(const float *factors, const float *at, const float *line, const Rules *rules, float *restrict out) {
    float total = 0;
    int is_begun = 0;
    for (int n = 0; n < 4; n++) {
        int64_t axis = rules->order[n];
        float factor = factors[axis], product = factor * at[axis];
        if (axis == 2 && rules->is_fused)
            for (int64_t k = 0; k < rules->num; k++) out[k] = fmaf(factor, line[k], total);
        else if (axis == 2)
            for (int64_t k = 0; k < rules->num; k++) out[k] = total + factor * line[k];
        else if (is_begun && rules->is_fused)
            for (int64_t k = 0; k < rules->num; k++) out[k] = fmaf(factor, at[axis], out[k]);
        else if (is_begun)
            for (int64_t k = 0; k < rules->num; k++) out[k] = out[k] + product;
        else
            total = rules->is_fused ? fmaf(factor, at[axis], total) : total + product;
        is_begun |= axis == 2;
    }
}

/* The coordinates of a row with its shifts, `step` apart for each axis. */
static void shift_row(const float *at, const float *line, const float *shifts, int64_t step, int64_t num,
                      float *restrict moved) {
    for (int axis = 0; axis < 3; axis++, shifts += step, moved += num)
        for (int64_t k = 0; k < num; k++)
            moved[k] = (float)((double)(axis < 2 ? at[axis] : line[k]) + (double)shifts[k]);
}

/* Sums of a row of shifted coordinates. */
static void sum_moved(const float *factors, const float *moved, const Rules *rules, float *restrict out) {
    const int64_t *order = rules->order, num = rules->num;
    float a = factors[order[0]], b = factors[order[1]], c = factors[order[2]], last = factors[3];
    const float *x = moved + order[0] * num, *y = moved + order[1] * num, *z = moved + order[2] * num;
    if (rules->is_fused)
        for (int64_t k = 0; k < num; k++) out[k] = fmaf(c, z[k], fmaf(b, y[k], a * x[k])) + last;
    else
        for (int64_t k = 0; k < num; k++) out[k] = ((a * x[k] + b * y[k]) + c * z[k]) + last;
}

INLINE float voxel_of(const void *voxels, int64_t k, size_t size, int is_float) {
    if (is_float) return ((const float *)voxels)[k];
    return size == 2 ? (float)((const int16_t *)voxels)[k] : (float)((const uint8_t *)voxels)[k];
}

/* One channel of a row from the eight neighbors of each voxel, two along z side by side. */
INLINE void fill_linear(const uint8_t *box, const int64_t *shape, const float *scale, const Scratch *own, int64_t num,
                        size_t size, int is_float) {
    size_t jump_x = (size_t)(shape[2] * shape[3]) * size, jump_y = (size_t)shape[3] * size, row = 2 * (size_t)num * size;
    uint8_t *restrict c00 = own->corners, *restrict c01 = c00 + row;
    uint8_t *restrict c10 = c01 + row, *restrict c11 = c10 + row;
    for (int64_t k = 0; k < num; k++) {
        const uint8_t *base = box + own->place[k] * size;
        size_t to = 2 * (size_t)k * size;
        memcpy(c00 + to, base, 2 * size);
        memcpy(c01 + to, base + jump_y, 2 * size);
        memcpy(c10 + to, base + jump_x, 2 * size);
        memcpy(c11 + to, base + jump_x + jump_y, 2 * size);
    }
    const float *restrict wx = own->weights, *restrict wy = wx + num, *restrict wz = wy + num;
    float *restrict out = own->row, factor = scale[0], shift = scale[1];
    for (int64_t k = 0; k < num; k++) {
        float v00 = mix(voxel_of(c00, 2 * k, size, is_float), voxel_of(c00, 2 * k + 1, size, is_float), wz[k]);
        float v01 = mix(voxel_of(c01, 2 * k, size, is_float), voxel_of(c01, 2 * k + 1, size, is_float), wz[k]);
        float v10 = mix(voxel_of(c10, 2 * k, size, is_float), voxel_of(c10, 2 * k + 1, size, is_float), wz[k]);
        float v11 = mix(voxel_of(c11, 2 * k, size, is_float), voxel_of(c11, 2 * k + 1, size, is_float), wz[k]);
        out[k] = mix(mix(v00, v01, wy[k]), mix(v10, v11, wy[k]), wx[k]) * factor + shift;
    }
}

/* One channel of a row from the nearest voxels. */
INLINE void fill_nearest(const uint8_t *box, const float *scale, const Scratch *own, int64_t num, int is_float) {
    float *restrict out = own->row, factor = scale[0], shift = scale[1];
    for (int64_t k = 0; k < num; k++) out[k] = voxel_of(box, own->place[k], 1, is_float) * factor + shift;
}

/* Row (i, j) of all channels, from places that were found before. */
static void fill_row(const Part *part, const Scratch *own, int64_t i, int64_t j, int64_t num, int is_linear) {
    const int64_t *shape = part->shape, *steps = part->steps;
    size_t size = part->is_float ? 4 : is_linear ? 2 : 1;
    for (int64_t c = 0; c < shape[0]; c++) {
        const uint8_t *box = part->box + (size_t)(c * shape[1] * shape[2] * shape[3]) * size;
        const float *scale = part->scale + 2 * c;
        if (is_linear && part->is_float)
            fill_linear(box, shape, scale, own, num, 4, 1);
        else if (is_linear)
            fill_linear(box, shape, scale, own, num, 2, 0);
        else if (part->is_float)
            fill_nearest(box, scale, own, num, 1);
        else
            fill_nearest(box, scale, own, num, 0);
        float *out = part->out + steps[0] + c * steps[1] + i * steps[2] + j * steps[3];
        if (steps[4] == 1)
            memcpy(out, own->row, (size_t)num * sizeof(float));
        else
            for (int64_t k = 0; k < num; k++) out[k * steps[4]] = own->row[k];
    }
}

INLINE int32_t held(int32_t value, int32_t last) {
    value = value > 0 ? value : 0;
    return value < last ? value : last;
}

#define STORED double
#define STORED_NAME float64
#include "sample_stored.h"
#define STORED float
#define STORED_NAME float32
#include "sample_stored.h"
