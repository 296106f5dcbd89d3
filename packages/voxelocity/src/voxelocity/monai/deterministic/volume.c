/* Loops of MONAI's deterministic transforms over a channel or a whole volume; see `native_loops`. */
#include "../../core/loops.h"

enum { LANES = 16 };

/* First and last index (2, 3) of the voxels above the threshold in these channels of an image (c, x, y, z); last is -1
 * if none is. Voxels that cannot widen the box are not read. */
int LOOP(positive_box)(const float *image, const int64_t *shape, const int64_t *channels, int64_t num_channels,
                       float threshold, int64_t *box) {
    int64_t nx = shape[1], ny = shape[2], nz = shape[3], *first = box, *last = box + 3;
    if (!are_inside(channels, num_channels, shape[0])) return OUT_OF_RANGE;
    for (int axis = 0; axis < 3; axis++) first[axis] = shape[axis + 1], last[axis] = -1;
    for (int64_t n = 0; n < num_channels * nx * ny; n++) {
        int64_t x = n / ny % nx, y = n % ny;
        const float *row = image + (channels[n / (nx * ny)] * nx * ny + n % (nx * ny)) * nz;
        int is_inside = first[0] <= x && x <= last[0] && first[1] <= y && y <= last[1];
        /* A row within the box so far can only lengthen it at its ends. */
        int64_t before = is_inside ? smaller(first[2], nz) : nz, z = 0;
        while (z < before && !(row[z] > threshold)) z++;
        int is_found = z < before;
        if (!is_found && !is_inside) continue;
        if (is_found) first[2] = smaller(first[2], z);
        int64_t after = is_found && z > last[2] ? z : last[2];
        z = nz - 1;
        while (z > after && !(row[z] > threshold)) z--;
        last[2] = z > last[2] ? z : last[2];
        if (is_inside) continue;
        first[0] = smaller(first[0], x), last[0] = x > last[0] ? x : last[0];
        first[1] = smaller(first[1], y), last[1] = y > last[1] ? y : last[1];
    }
    return DONE;
}

/* Number of values (3,), and their sum and sum of squares after subtracting `shift`; optionally of those not 0. */
int LOOP(sum_moments)(const float *values, int64_t num, double shift, int64_t only_nonzero, double *sums) {
    double count[LANES] = {0}, total[LANES] = {0}, squares[LANES] = {0};
    for (int64_t first = 0; first < num; first += LANES) {
        float row[LANES];
        int width = (int)smaller(LANES, num - first);
        memcpy(row, values + first, (size_t)width * sizeof(float));
        for (int lane = 0; lane < LANES; lane++) {
            int is_counted = (lane < width) & (!only_nonzero | (row[lane] != 0));
            double centered = is_counted ? (double)row[lane] - shift : 0;
            count[lane] += is_counted;
            total[lane] += centered;
            squares[lane] += centered * centered;
        }
    }
    sums[0] = sums[1] = sums[2] = 0;
    for (int lane = 0; lane < LANES; lane++)
        sums[0] += count[lane], sums[1] += total[lane], sums[2] += squares[lane];
    return DONE;
}

INLINE void normalize_into(const float *source, float *out, int64_t num, float mean, float deviation, int keeps_zero) {
    for (int64_t k = 0; k < num; k++) {
        float value = source[k], changed = (value - mean) / deviation;
        out[k] = keeps_zero & (value == 0) ? value : changed;
    }
}

/* (value - mean) / deviation, also in place; zeros are optionally kept. */
int LOOP(normalize)(const float *source, float *out, int64_t num, float mean, float deviation, int64_t keeps_zero) {
    /* Two loops, as one for any two pointers would not use wide registers in place. */
    if (source == out)
        normalize_into(out, out, num, mean, deviation, keeps_zero != 0);
    else
        normalize_into(source, out, num, mean, deviation, keeps_zero != 0);
    return DONE;
}

#define STORED uint8_t
#define STORED_NAME uint8
#include "volume_stored.h"
#define STORED int16_t
#define STORED_NAME int16
#include "volume_stored.h"
#define STORED int32_t
#define STORED_NAME int32
#include "volume_stored.h"
#define STORED float
#define STORED_NAME float32
#include "volume_stored.h"
#define STORED double
#define STORED_NAME float64
#include "volume_stored.h"
