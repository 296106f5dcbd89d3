/* Loops of intensity steps: programs of pointwise steps, fills, noise, and filters with zeros beyond the border. */
#include "../../../data/augment/numbers.h"

enum { LINEAR, LINEAR_BUT_ZERO, CLIP, KEEP_ABOVE, KEEP_BELOW, POWER, CURVE };
/* Voxels that go through all steps of a program before the next ones: they stay in the first-level cache. */
enum { LANES = 16, PROGRAM_VOXELS = 2048, LINE_VOXELS = 1024 };
/* Just above the denormal numbers: the smallest whose logarithm is taken. */
#define TINY 1e-37f
#define MAGNITUDE 0x7FFFFFFF

/* How many numbers a step has; 0 if there is no such step, or if its curve has none. */
INLINE int64_t num_numbers_of(int64_t code, const float *numbers, int64_t left) {
    static const int64_t known[] = {3, 3, 2, 2, 2, 5};
    if (code < LINEAR || code > CURVE) return 0;
    if (code < CURVE) return known[code];
    return left >= 3 && numbers[2] >= 1 && numbers[2] < 0x1p24f ? 4 + (int64_t)numbers[2] : 0;
}

/* Applies one step to a chunk of voxels. */
INLINE void make_step(float *restrict chunk, int64_t num, int64_t code, const float *numbers) {
    float a = numbers[0], b = numbers[1];
    if (code == LINEAR) {
        float c = numbers[2];
        for (int64_t t = 0; t < num; t++) chunk[t] = (chunk[t] - a) * b + c;
    } else if (code == LINEAR_BUT_ZERO) {
        float c = numbers[2];
        for (int64_t t = 0; t < num; t++) chunk[t] = chunk[t] == 0 ? chunk[t] : (chunk[t] - a) * b + c;
    } else if (code == CLIP) {
        for (int64_t t = 0; t < num; t++) chunk[t] = clamp(chunk[t], a, b);
    } else if (code == KEEP_ABOVE) {
        for (int64_t t = 0; t < num; t++) chunk[t] = chunk[t] > a ? chunk[t] : b;
    } else if (code == KEEP_BELOW) {
        for (int64_t t = 0; t < num; t++) chunk[t] = chunk[t] < a ? chunk[t] : b;
    } else if (code == POWER) {
        float gamma = numbers[2], span = numbers[3], at_zero = numbers[4];
        for (int64_t t = 0; t < num; t++) {
            float unit = (chunk[t] - a) * b;
            float power = exp2_of(clamp(gamma * log2_of(unit > TINY ? unit : TINY), -126, 126));
            power = unit > 0 ? power : unit <= 0 ? at_zero : unit;
            chunk[t] = power * span + a;
        }
    } else {
        int32_t last = (int32_t)numbers[2];
        for (int64_t t = 0; t < num; t++) {
            float place = clamp((chunk[t] - a) * b, 0, (float)last);
            int32_t below = place > 0 ? (int32_t)place : 0; /* of a NaN too */
            below = below < last ? below : last - 1;
            float value = numbers[3 + below];
            chunk[t] = value + (place - (float)below) * (numbers[4 + below] - value);
        }
    }
}

typedef struct {
    int32_t low[LANES], high[LANES], count[LANES]; /* the extremes as keys */
    double total[LANES], squares[LANES];
} Sums;

/* Adds up to LANES voxels. The bits of floats are mapped to integers of the same order, whose extremes vectorize without
 * losing a NaN. */
INLINE void add_row(const float *row, int num, double pivot, int only_nonzero, Sums *sums) {
    for (int lane = 0; lane < num; lane++) {
        int32_t bits;
        memcpy(&bits, row + lane, 4);
        int32_t key = bits ^ ((bits >> 31) & MAGNITUDE);
        int is_counted = !only_nonzero | (row[lane] != 0);
        int32_t low = is_counted ? key : MAGNITUDE, high = is_counted ? key : ~MAGNITUDE;
        sums->low[lane] = low < sums->low[lane] ? low : sums->low[lane];
        sums->high[lane] = high > sums->high[lane] ? high : sums->high[lane];
        sums->count[lane] += is_counted;
        double centered = is_counted ? (double)row[lane] - pivot : 0;
        sums->total[lane] += centered;
        sums->squares[lane] += centered * centered;
    }
}

INLINE void add_rows(const float *chunk, int64_t num, double pivot, int only_nonzero, Sums *found) {
    Sums sums = *found;
    int64_t t = 0;
    for (; t + LANES <= num; t += LANES) add_row(chunk + t, LANES, pivot, only_nonzero, &sums);
    add_row(chunk + t, (int)(num - t), pivot, only_nonzero, &sums);
    *found = sums;
}

INLINE float of_key(int32_t key) {
    float value;
    key ^= (key >> 31) & MAGNITUDE;
    memcpy(&value, &key, 4);
    return value;
}

/* Number of voxels, smallest, largest, mean, variance; all but the first NaN without any voxel, or if one is. */
INLINE void fill_facts(const Sums *sums, double pivot, double *facts) {
    int32_t low = MAGNITUDE, high = ~MAGNITUDE;
    int64_t count = 0;
    double total = 0, squares = 0;
    for (int lane = 0; lane < LANES; lane++) {
        low = sums->low[lane] < low ? sums->low[lane] : low;
        high = sums->high[lane] > high ? sums->high[lane] : high;
        count += sums->count[lane], total += sums->total[lane], squares += sums->squares[lane];
    }
    double mean = total / (double)count, variance = squares / (double)count - mean * mean;
    facts[0] = (double)count, facts[1] = of_key(low), facts[2] = of_key(high);
    facts[3] = pivot + mean, facts[4] = variance < 0 ? 0 : variance;
    for (int n = 1; n < 5 && (count == 0 || mean != mean); n++) facts[n] = NAN;
}

/* Applies the steps of a program to a channel, chunk by chunk; `takes` is 0 for no facts, 1 for those of the result, 2
 * for those of its voxels that are not 0. Step n has the numbers from `starts[n]` on. */
int LOOP(run_program)(float *flat, int64_t num, const int64_t *codes, const int64_t *starts, int64_t num_steps,
                      const float *numbers, int64_t num_numbers, double *facts, int64_t takes) {
    for (int64_t n = 0; n < num_steps; n++) {
        if (starts[n] < 0 || starts[n] > num_numbers) return OUT_OF_RANGE;
        int64_t left = num_numbers - starts[n], needed = num_numbers_of(codes[n], numbers + starts[n], left);
        if (needed == 0 || needed > left) return OUT_OF_RANGE;
    }
    Sums sums = {{0}, {0}, {0}, {0}, {0}};
    for (int lane = 0; lane < LANES; lane++) sums.low[lane] = MAGNITUDE, sums.high[lane] = ~MAGNITUDE;
    double pivot = 0; /* the first result, so that digits are not lost when the mean is large */
    for (int64_t start = 0; start < num; start += PROGRAM_VOXELS) {
        int64_t voxels = smaller(PROGRAM_VOXELS, num - start);
        for (int64_t n = 0; n < num_steps; n++) make_step(flat + start, voxels, codes[n], numbers + starts[n]);
        if (start == 0) pivot = flat[0];
        if (takes == 1) add_rows(flat + start, voxels, pivot, 0, &sums);
        if (takes == 2) add_rows(flat + start, voxels, pivot, 1, &sums);
    }
    if (takes) fill_facts(&sums, pivot, facts);
    return DONE;
}

/* As `fill_boxes`, for all voxels outside the boxes; `noise` has a number for each voxel of the patch, or none. */
int LOOP(fill_outside)(float *patch, const int64_t *shape, const int64_t *places, int64_t num_boxes,
                       const double *noise, int64_t num_numbers, double low, double width) {
    int64_t nc = shape[0], nx = shape[1], ny = shape[2], nz = shape[3];
    if (num_numbers > 0 && num_numbers < nc * nx * ny * nz) return OUT_OF_RANGE;
    uint8_t *is_kept = malloc((size_t)nz + 1);
    if (!is_kept) return NO_MEMORY;
    for (int64_t i = 0; i < nx; i++)
        for (int64_t j = 0; j < ny; j++) {
            memset(is_kept, 0, (size_t)nz);
            for (int64_t b = 0; b < num_boxes; b++) {
                const int64_t *start = places + 6 * b, *stop = start + 3;
                if (i < start[0] || i >= stop[0] || j < start[1] || j >= stop[1]) continue;
                for (int64_t k = start[2] < 0 ? 0 : start[2]; k < smaller(stop[2], nz); k++) is_kept[k] = 1;
            }
            for (int64_t c = 0; c < nc; c++) {
                int64_t first = ((c * nx + i) * ny + j) * nz;
                for (int64_t k = 0; k < nz; k++)
                    if (!is_kept[k]) patch[first + k] = (float)(num_numbers > 0 ? low + noise[first + k] * width : low);
            }
        }
    free(is_kept);
    return DONE;
}

/* The magnitude, with noise of channel `number` in the real part and of channel `other` in the imaginary part. */
int LOOP(add_rician)(float *flat, int64_t num, const int32_t *pieces, float mean, float std, uint64_t seed,
                     int64_t number, int64_t other) {
    uint32_t words[CHUNK];
    float reals[CHUNK], imaginaries[CHUNK];
    for (int64_t start = 0; start < num; start += CHUNK) {
        draw_words(words, (uint32_t)(start / 4), seed, (uint32_t)number);
        make_normal(words, pieces, reals);
        draw_words(words, (uint32_t)(start / 4), seed, (uint32_t)other);
        make_normal(words, pieces, imaginaries);
        float *restrict line = flat + start;
        int64_t left = smaller(CHUNK, num - start);
        for (int64_t t = 0; t < left; t++) {
            float real = line[t] + (mean + std * reals[t]), imaginary = mean + std * imaginaries[t];
            line[t] = sqrtf(real * real + imaginary * imaginary);
        }
    }
    return DONE;
}

/* Symmetric weights of an axis, `radius` on each side of the middle one. */
typedef struct {
    const float *weights;
    int64_t radius;
} Taps;

INLINE void add_scaled(float *restrict row, const float *restrict line, float weight, int64_t num) {
    for (int64_t k = 0; k < num; k++) row[k] += weight * line[k];
}

/* The blur within a plane (ny, nz), into `target`; `padded` has zeros before and after its nz places. */
INLINE void blur_plane(const float *plane, int64_t ny, int64_t nz, Taps y, Taps z, float *restrict padded,
                       float *restrict along_z, float *restrict target) {
    for (int64_t j = 0; j < ny; j++) {
        memcpy(padded + z.radius, plane + j * nz, (size_t)nz * sizeof(float));
        float *restrict row = along_z + j * nz;
        const float *restrict line = padded + z.radius;
        for (int64_t k = 0; k < nz; k++) row[k] = z.weights[z.radius] * line[k];
        for (int64_t r = 1; r <= z.radius; r++)
            for (int64_t k = 0; k < nz; k++) row[k] += z.weights[z.radius - r] * (line[k - r] + line[k + r]);
    }
    for (int64_t j = 0; j < ny; j++) {
        float *restrict row = target + j * nz;
        const float *restrict line = along_z + j * nz;
        for (int64_t k = 0; k < nz; k++) row[k] = y.weights[y.radius] * line[k];
        for (int64_t r = 1; r <= y.radius; r++) {
            if (j >= r) add_scaled(row, along_z + (j - r) * nz, y.weights[y.radius - r], nz);
            if (j + r < ny) add_scaled(row, along_z + (j + r) * nz, y.weights[y.radius - r], nz);
        }
    }
}

/* `field.Blur` on a channel (nx, ny, nz), in place; `alpha` is only used if it sharpens. One pass, which keeps only the
 * blurred planes that it needs: plane p in slot p % num_slots. */
int LOOP(blur_in_zeros)(float *channel, const int64_t *shape, const float *weights_x, const float *weights_y,
                        const float *weights_z, float alpha, int64_t sharpens) {
    int64_t nx = shape[0], ny = shape[1], nz = shape[2], size = ny * nz, radius = shape[3];
    Taps y = {weights_y, shape[4]}, z = {weights_z, shape[5]};
    int64_t num_slots = smaller(2 * radius + 1, nx), num_padded = nz + 2 * z.radius;
    float *memory = new_floats(num_padded + size + num_slots * size + nz);
    if (!memory) return NO_MEMORY;
    float *padded = memory, *along_z = padded + num_padded, *ring = along_z + size;
    float *restrict row = ring + num_slots * size;
    memset(padded, 0, (size_t)num_padded * sizeof(float));
    for (int64_t ahead = 0; ahead < nx + radius; ahead++) {
        if (ahead < nx)
            blur_plane(channel + ahead * size, ny, nz, y, z, padded, along_z, ring + ahead % num_slots * size);
        int64_t i = ahead - radius, first = i - radius < 0 ? 0 : i - radius, last = smaller(ahead, nx - 1);
        for (int64_t j = 0; i >= 0 && j < ny; j++) {
            float *restrict line = channel + i * size + j * nz;
            memset(row, 0, (size_t)nz * sizeof(float));
            for (int64_t p = first; p <= last; p++)
                add_scaled(row, ring + p % num_slots * size + j * nz, weights_x[p - i + radius], nz);
            if (sharpens)
                for (int64_t k = 0; k < nz; k++) line[k] = line[k] + alpha * (line[k] - row[k]);
            else
                memcpy(line, row, (size_t)nz * sizeof(float));
        }
    }
    free(memory);
    return DONE;
}

/* The weighted sum of `num` lines of `size`, `step` apart; each product is added before it is rounded. */
INLINE void sum_fused(const float *lines, int64_t num, int64_t step, const float *weights, int64_t size,
                      float *restrict out) {
    for (int64_t first = 0; first < size; first += LINE_VOXELS) {
        int64_t length = smaller(LINE_VOXELS, size - first);
        float *restrict part = out + first;
        memset(part, 0, (size_t)length * sizeof(float));
        for (int64_t tap = 0; tap < num; tap++) {
            const float *restrict line = lines + tap * step + first;
            for (int64_t k = 0; k < length; k++) part[k] = fmaf(line[k], weights[tap], part[k]);
        }
    }
}

/* The same of the lines around number `place` of `num`, with zeros beyond them. */
INLINE void sum_around(const float *lines, int64_t num, int64_t place, Taps taps, int64_t size, float *out) {
    int64_t first = place < taps.radius ? 0 : place - taps.radius, stop = smaller(place + taps.radius + 1, num);
    sum_fused(lines + first * size, stop - first, size, taps.weights + first - place + taps.radius, size, out);
}

/* Fields (c, x, y, z) smoothed along x, y and z, with zeros beyond them. The products of a voxel are summed in the
 * order of the weights, as torch's convolutions do with several threads, so that the results are equal bit for bit. */
int LOOP(smooth)(const float *fields, const int64_t *shape, const float *weights, int64_t num_weights, float *out) {
    int64_t nx = shape[1], ny = shape[2], nz = shape[3], size = ny * nz;
    Taps taps = {weights, num_weights / 2};
    int64_t num_padded = nz + 2 * taps.radius;
    float *plane = new_floats(size + num_padded);
    if (!plane) return NO_MEMORY;
    float *row = plane + size;
    memset(row, 0, (size_t)num_padded * sizeof(float));
    for (int64_t c = 0; c < shape[0]; c++)
        for (int64_t i = 0; i < nx; i++) {
            sum_around(fields + c * nx * size, nx, i, taps, size, plane);
            for (int64_t j = 0; j < ny; j++) {
                sum_around(plane, ny, j, taps, nz, row + taps.radius);
                sum_fused(row, num_weights, 1, weights, nz, out + ((c * nx + i) * ny + j) * nz);
            }
        }
    free(plane);
    return DONE;
}
