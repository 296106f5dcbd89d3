/* The class of each voxel of a scan from scores on the prepared grid.
 *
 * Interpolation is monotonic: a class that is ahead at every neighbor of a voxel is ahead at the voxel. So a block of
 * the scan whose neighbors all have one class takes that class, and inside an organ or the background nothing is
 * interpolated, divided or exponentiated. `restore.fill_classes_plain` is the slow reference. */
#include "../../core/loops.h"

/* Voxels of a block along (x, y, z): large enough that its neighbors are read few times, small enough for one class.
 * `native_restore.BLOCK` has the same. */
enum { BLOCK_X = 8, BLOCK_Y = 8, BLOCK_Z = 32 };

/* Scores (c, x, y, z): `steps` of c, x and y; rows along z are dense. */
typedef struct {
    const float *line;
    int64_t num_scores, nx, ny, nz;
    const int64_t *steps;
} Scores;

INLINE Scores scores_of(const float *line, const int64_t *sizes) {
    return (Scores){line, sizes[0], sizes[1], sizes[2], sizes[3], sizes + 4};
}

INLINE const float *row_at(const Scores *scores, int64_t c, int64_t i, int64_t j) {
    return scores->line + c * scores->steps[0] + i * scores->steps[1] + j * scores->steps[2];
}

/* Writes the index of the largest score of each voxel, the lowest of equals, to a target whose rows are dense. */
int LOOP(largest_class)(const float *line, const int64_t *sizes, uint8_t *target, const int64_t *target_steps) {
    Scores scores = scores_of(line, sizes);
    float *restrict best = malloc(scores.nz * (sizeof(float) + sizeof(int32_t)) + 1);
    if (!best) return NO_MEMORY;
    int32_t *restrict found = (int32_t *)(best + scores.nz);
    for (int64_t i = 0; i < scores.nx; i++) {
        for (int64_t j = 0; j < scores.ny; j++) {
            memcpy(best, row_at(&scores, 0, i, j), scores.nz * sizeof(float));
            memset(found, 0, scores.nz * sizeof(int32_t));
            for (int64_t c = 1; c < scores.num_scores; c++) {
                const float *restrict row = row_at(&scores, c, i, j);
                for (int64_t k = 0; k < scores.nz; k++) {
                    int wins = row[k] > best[k];
                    best[k] = wins ? row[k] : best[k];
                    found[k] = wins ? (int32_t)c : found[k];
                }
            }
            uint8_t *restrict to = target + i * target_steps[0] + j * target_steps[1];
            for (int64_t k = 0; k < scores.nz; k++) to[k] = (uint8_t)found[k];
        }
    }
    free(best);
    return DONE;
}

/* Writes the class of the last score above 0, or 0; `order` has the class of each score. */
int LOOP(last_above)(const float *line, const int64_t *sizes, uint8_t *target, const int64_t *target_steps,
                     const uint8_t *order) {
    Scores scores = scores_of(line, sizes);
    for (int64_t i = 0; i < scores.nx; i++) {
        for (int64_t j = 0; j < scores.ny; j++) {
            uint8_t *restrict to = target + i * target_steps[0] + j * target_steps[1];
            memset(to, 0, scores.nz);
            for (int64_t c = 0; c < scores.num_scores; c++) {
                const float *restrict row = row_at(&scores, c, i, j);
                for (int64_t k = 0; k < scores.nz; k++) to[k] = row[k] > 0 ? order[c] : to[k];
            }
        }
    }
    return DONE;
}

/* Of an axis of the target: the two voxels of the scores around each place, and the weight of the second. */
typedef struct {
    const int64_t *below, *above;
    const float *weight;
    int64_t num;
} Axis;

/* A box of scores: start and shape. */
typedef struct {
    int64_t sx, sy, sz, nx, ny, nz;
} Box;

/* Whether the voxels of an axis ascend and lie in the scores. */
INLINE int is_ascending(Axis axis, int64_t length) {
    int good = are_inside(axis.below, axis.num, length) && are_inside(axis.above, axis.num, length);
    for (int64_t k = 0; k < axis.num; k++) {
        good &= axis.above[k] >= axis.below[k];
        if (k > 0) good &= axis.below[k] >= axis.below[k - 1] && axis.above[k] >= axis.above[k - 1];
    }
    return good;
}

/* The first voxel of the scores that a block of the target needs, and how many. */
INLINE int64_t reach(Axis axis, int64_t start, int64_t block, int64_t *first) {
    *first = axis.below[start];
    return axis.above[smaller(start + block, axis.num) - 1] + 1 - *first;
}

INLINE int is_uniform(const uint8_t *classes, const Scores *scores, Box box) {
    uint8_t first = classes[(box.sx * scores->ny + box.sy) * scores->nz + box.sz];
    for (int64_t i = box.sx; i < box.sx + box.nx; i++) {
        for (int64_t j = box.sy; j < box.sy + box.ny; j++) {
            const uint8_t *row = classes + (i * scores->ny + j) * scores->nz + box.sz;
            uint8_t differs = 0;
            for (int64_t k = 0; k < box.nz; k++) differs |= row[k] ^ first;
            if (differs) return 0;
        }
    }
    return 1;
}

/* The scores of a box as (c, x, y, z), divided by the weights if there are any, as probabilities if asked for. */
INLINE void load(const Scores *scores, const float *weights, const int64_t *weight_steps, Box box, int is_softmax,
                 float *scratch) {
    int64_t size = box.nx * box.ny * box.nz;
    for (int64_t c = 0; c < scores->num_scores; c++) {
        for (int64_t i = 0; i < box.nx; i++) {
            for (int64_t j = 0; j < box.ny; j++) {
                const float *restrict row = row_at(scores, c, box.sx + i, box.sy + j) + box.sz;
                float *restrict to = scratch + c * size + (i * box.ny + j) * box.nz;
                if (!weights) {
                    memcpy(to, row, box.nz * sizeof(float));
                    continue;
                }
                const float *restrict by =
                    weights + (box.sx + i) * weight_steps[0] + (box.sy + j) * weight_steps[1] + box.sz;
                for (int64_t k = 0; k < box.nz; k++) to[k] = row[k] / by[k];
            }
        }
    }
    for (int64_t n = 0; is_softmax && n < size; n++) {
        float largest = scratch[n], total = 0;
        for (int64_t c = 1; c < scores->num_scores; c++)
            largest = scratch[c * size + n] > largest ? scratch[c * size + n] : largest;
        for (int64_t c = 0; c < scores->num_scores; c++) {
            float value = expf(scratch[c * size + n] - largest);
            scratch[c * size + n] = value;
            total += value;
        }
        for (int64_t c = 0; c < scores->num_scores; c++) scratch[c * size + n] /= total;
    }
}

/* Interpolates voxels `first` to `last` of row (i, j) of the target; `source` is one class of a box. */
INLINE void mix_row(const float *source, int64_t i, int64_t j, Box box, const Axis *axes, int64_t first, int64_t last,
                    float *restrict mixed, float *restrict out) {
    float wx = axes[0].weight[i], wy = axes[1].weight[j];
    const float *at_x = source + (axes[0].below[i] - box.sx) * box.ny * box.nz;
    const float *over_x = source + (axes[0].above[i] - box.sx) * box.ny * box.nz;
    int64_t at_y = (axes[1].below[j] - box.sy) * box.nz, over_y = (axes[1].above[j] - box.sy) * box.nz;
    for (int64_t k = 0; k < box.nz; k++)
        mixed[k] = mix(mix(at_x[at_y + k], at_x[over_y + k], wy), mix(over_x[at_y + k], over_x[over_y + k], wy), wx);
    for (int64_t k = first; k < last; k++)
        out[k - first] =
            mix(mixed[axes[2].below[k] - box.sz], mixed[axes[2].above[k] - box.sz], axes[2].weight[k]);
}

/* Fills `left` with the scores that may be the largest somewhere in the box, and returns how many there are. */
INLINE int64_t find_left(const float *scratch, int64_t size, int64_t num_scores, int64_t *left) {
    float floor = -INFINITY;
    for (int64_t c = 0; c < num_scores; c++) {
        float smallest = scratch[c * size];
        for (int64_t n = 1; n < size; n++) smallest = scratch[c * size + n] < smallest ? scratch[c * size + n] : smallest;
        floor = smallest > floor ? smallest : floor;
    }
    /* Rounding may move an interpolated value out of the range of its neighbors. */
    floor -= 1e-5f * (fabsf(floor) > 1 ? fabsf(floor) : 1);
    int64_t num_left = 0;
    for (int64_t c = 0; c < num_scores; c++) {
        float largest = scratch[c * size];
        for (int64_t n = 1; n < size; n++) largest = scratch[c * size + n] > largest ? scratch[c * size + n] : largest;
        if (largest >= floor) left[num_left++] = c;
    }
    return num_left;
}

/* Writes one row of the target: the largest score, or the class of the last score above 0. */
INLINE void take_row(const float *row_scores, int64_t num, int64_t n, uint8_t class, int by_sign, float *restrict best,
                     uint8_t *restrict row) {
    for (int64_t k = 0; k < num; k++) {
        int wins = by_sign ? row_scores[k] > 0 : n == 0 || row_scores[k] > best[k];
        best[k] = wins ? row_scores[k] : best[k];
        row[k] = wins ? class : row[k];
    }
}

/* The arguments are explained in `native_restore.fill_classes`. `counts` are the target's shape, its steps, those of the
 * weights, the numbers of weights, of classes in `order` and of scratch, and whether probabilities are interpolated. */
int LOOP(fill_classes)(const float *line, const int64_t *sizes, const float *weights, const uint8_t *classes,
                       const int64_t *below_x, const int64_t *above_x, const float *weight_x, const int64_t *below_y,
                       const int64_t *above_y, const float *weight_y, const int64_t *below_z, const int64_t *above_z,
                       const float *weight_z, uint8_t *target, const uint8_t *order, const int64_t *counts,
                       float *scratch) {
    Scores scores = scores_of(line, sizes);
    const int64_t *steps = counts + 3, num_scratch = counts[9];
    int by_sign = counts[8] > 0;
    if (counts[7] == 0) weights = NULL;
    const Axis axes[3] = {{below_x, above_x, weight_x, counts[0]},
                          {below_y, above_y, weight_y, counts[1]},
                          {below_z, above_z, weight_z, counts[2]}};
    if (!is_ascending(axes[0], scores.nx) || !is_ascending(axes[1], scores.ny) || !is_ascending(axes[2], scores.nz))
        return OUT_OF_RANGE;
    float *mixed = malloc((scores.nz + 1) * sizeof(float)), best[BLOCK_Z], row_scores[BLOCK_Z];
    int64_t *left = malloc((scores.num_scores + 1) * sizeof(int64_t));
    int status = mixed && left ? DONE : NO_MEMORY;
    for (int64_t x0 = 0; status == DONE && x0 < axes[0].num; x0 += BLOCK_X) {
        for (int64_t y0 = 0; status == DONE && y0 < axes[1].num; y0 += BLOCK_Y) {
            for (int64_t z0 = 0; status == DONE && z0 < axes[2].num; z0 += BLOCK_Z) {
                Box box;
                box.nx = reach(axes[0], x0, BLOCK_X, &box.sx);
                box.ny = reach(axes[1], y0, BLOCK_Y, &box.sy);
                box.nz = reach(axes[2], z0, BLOCK_Z, &box.sz);
                int64_t x1 = smaller(x0 + BLOCK_X, axes[0].num), y1 = smaller(y0 + BLOCK_Y, axes[1].num);
                int64_t z1 = smaller(z0 + BLOCK_Z, axes[2].num), size = box.nx * box.ny * box.nz, num_left = 0;
                int same = is_uniform(classes, &scores, box);
                uint8_t class = classes[(box.sx * scores.ny + box.sy) * scores.nz + box.sz];
                if (!same) {
                    if (scores.num_scores * size > num_scratch) {
                        status = OUT_OF_RANGE;
                        break;
                    }
                    load(&scores, weights, steps + 2, box, counts[10] != 0, scratch);
                    num_left = by_sign ? scores.num_scores : find_left(scratch, size, scores.num_scores, left);
                }
                for (int64_t i = x0; i < x1; i++) {
                    for (int64_t j = y0; j < y1; j++) {
                        uint8_t *row = target + i * steps[0] + j * steps[1] + z0;
                        if (same) memset(row, class, z1 - z0);
                        for (int64_t n = 0; n < num_left; n++) {
                            int64_t c = by_sign ? n : left[n];
                            mix_row(scratch + c * size, i, j, box, axes, z0, z1, mixed, row_scores);
                            take_row(row_scores, z1 - z0, n, by_sign ? order[c] : (uint8_t)c, by_sign, best, row);
                        }
                    }
                }
            }
        }
    }
    free(mixed);
    free(left);
    return status;
}
