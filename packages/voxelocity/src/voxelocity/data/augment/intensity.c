/* Loops over the intensities of a patch: bias, noise, blur, brightness, contrast, gamma, boxes, colors.
 *
 * Sums are taken in LANES parts, which wide registers add side by side: in the same order on every processor. */
#include "numbers.h"

enum { LANES = 16 };

/* Times the bias field. Channel (nx, ny, nz), cube (i, j, k), Legendre tables (nx, i), (ny, j), (k, nz). */
int LOOP(apply_bias)(float *channel, const int64_t *shape, const float *cube, const int64_t *terms,
                     const float *legendre_x, const float *legendre_y, const float *legendre_z) {
    int64_t nx = shape[0], ny = shape[1], nz = shape[2], na = terms[0], nb = terms[1], nc = terms[2];
    float *restrict field = malloc(nz * sizeof(float) + 1);
    if (!field) return NO_MEMORY;
    for (int64_t i = 0; i < nx; i++) {
        for (int64_t j = 0; j < ny; j++) {
            memset(field, 0, nz * sizeof(float));
            for (int64_t c = 0; c < nc; c++) {
                float total = 0;
                for (int64_t a = 0; a < na; a++) {
                    float along = 0;
                    for (int64_t b = 0; b < nb; b++) along += legendre_y[j * nb + b] * cube[(a * nb + b) * nc + c];
                    total += legendre_x[i * na + a] * along;
                }
                const float *restrict table = legendre_z + c * nz;
                for (int64_t k = 0; k < nz; k++) field[k] += total * table[k];
            }
            float *restrict row = channel + (i * ny + j) * nz;
            for (int64_t k = 0; k < nz; k++)
                row[k] *= exp2_of(clamp(field[k] * 1.4426950408889634f, -126, 126));
        }
    }
    free(field);
    return DONE;
}

/* Adds `std` times the numbers of `noise.standard_normal(seed, number, num)`. */
int LOOP(add_noise)(float *flat, int64_t num, const int32_t *pieces, float std, uint64_t seed, int64_t number) {
    uint32_t words[CHUNK];
    float numbers[CHUNK];
    for (int64_t start = 0; start < num; start += CHUNK) {
        draw_words(words, (uint32_t)(start / 4), seed, (uint32_t)number);
        make_normal(words, pieces, numbers);
        float *restrict line = flat + start;
        int64_t left = smaller(CHUNK, num - start);
        for (int64_t t = 0; t < left; t++) line[t] += std * numbers[t];
    }
    return DONE;
}

/* The blur of one axis, mirrored about the outermost voxels: (nx, ny, nz) to another array of that shape. */
int LOOP(blur_mirrored)(const float *source, float *target, const int64_t *shape, const float *weights,
                        int64_t num_weights, int64_t axis) {
    int64_t nx = shape[0], ny = shape[1], nz = shape[2], radius = num_weights / 2, length = shape[axis];
    if (radius > 0 && radius >= length) return OUT_OF_RANGE;
    float *padded = malloc((nz + 2 * radius) * sizeof(float) + 1);
    if (!padded) return NO_MEMORY;
    for (int64_t i = 0; i < nx; i++) {
        for (int64_t j = 0; j < ny; j++) {
            float *restrict row = target + (i * ny + j) * nz;
            const float *own = source + (i * ny + j) * nz;
            if (axis == 2) {
                memcpy(padded + radius, own, nz * sizeof(float));
                for (int64_t r = 1; r <= radius; r++)
                    padded[radius - r] = own[r], padded[radius + nz - 1 + r] = own[nz - 1 - r];
            }
            for (int64_t w = 0; w < num_weights; w++) {
                const float *restrict line = padded + w;
                float weight = weights[w];
                if (axis != 2) {
                    int64_t middle = axis == 0 ? i : j, place = llabs(middle + w - radius);
                    if (place >= length) place = 2 * (length - 1) - place;
                    line = source + (axis == 0 ? place * ny + j : i * ny + place) * nz;
                }
                if (w == 0)
                    for (int64_t k = 0; k < nz; k++) row[k] = weight * line[k];
                else
                    for (int64_t k = 0; k < nz; k++) row[k] += weight * line[k];
            }
        }
    }
    free(padded);
    return DONE;
}

int LOOP(scale_and_shift)(float *flat, int64_t num, float scale, float shift) {
    for (int64_t t = 0; t < num; t++) flat[t] = flat[t] * scale + shift;
    return DONE;
}

typedef struct {
    float low, high;
    double mean, std;
} Moments;

/* Of at least one number; summed in float64. Mean and deviation are NaN if a number is. */
INLINE Moments moments(const float *flat, int64_t num) {
    float low[LANES], high[LANES];
    double total[LANES] = {0}, squares[LANES] = {0};
    /* About the first number, so that digits are not lost when the mean is large. */
    double pivot = flat[0];
    for (int lane = 0; lane < LANES; lane++) low[lane] = high[lane] = flat[0];
    for (int64_t t = 0; t < num; t += LANES) {
        /* What is missing in the last row is the first number, which adds 0. */
        float row[LANES];
        for (int lane = 0; lane < LANES; lane++) row[lane] = flat[0];
        if (t + LANES <= num)
            memcpy(row, flat + t, sizeof(row));
        else
            memcpy(row, flat + t, (num - t) * sizeof(float));
        for (int lane = 0; lane < LANES; lane++) {
            low[lane] = row[lane] < low[lane] ? row[lane] : low[lane];
            high[lane] = row[lane] > high[lane] ? row[lane] : high[lane];
            double centered = (double)row[lane] - pivot;
            total[lane] += centered;
            squares[lane] += centered * centered;
        }
    }
    for (int lane = 1; lane < LANES; lane++) {
        low[0] = low[lane] < low[0] ? low[lane] : low[0];
        high[0] = high[lane] > high[0] ? high[lane] : high[0];
        total[0] += total[lane];
        squares[0] += squares[lane];
    }
    double mean = total[0] / (double)num, variance = squares[0] / (double)num - mean * mean;
    return (Moments){low[0], high[0], pivot + mean, sqrt(variance < 0 ? 0 : variance)};
}

/* Contrast about the mean, clipped to the range. */
int LOOP(spread)(float *flat, int64_t num, float contrast) {
    if (num == 0) return DONE;
    Moments found = moments(flat, num);
    float center = (float)found.mean;
    for (int64_t t = 0; t < num; t++)
        flat[t] = clamp((flat[t] - center) * contrast + center, found.low, found.high);
    return DONE;
}

/* Gamma from the lower end, or from the upper one if inverted. */
int LOOP(bend)(float *flat, int64_t num, float gamma, int64_t is_inverted, int64_t keeps_moments) {
    if (num == 0) return DONE;
    Moments before = moments(flat, num);
    float span = before.high - before.low, sign = is_inverted ? -1 : 1, base = is_inverted ? before.high : before.low;
    if (!(span > 0)) return DONE;
    float inverse = sign / span, height = sign * span;
    for (int64_t t = 0; t < num; t++) {
        float unit = clamp((flat[t] - base) * inverse, 1e-30f, 1);
        float exponent = gamma * log2_of(unit), bent = base + height * exp2_of(exponent < -126 ? -126 : exponent);
        flat[t] = flat[t] == flat[t] ? bent : flat[t];
    }
    Moments after = moments(flat, num);
    if (keeps_moments && after.std > 0) {
        double factor = before.std / after.std;
        float scale = (float)factor, shift = (float)(before.mean - after.mean * factor);
        for (int64_t t = 0; t < num; t++) flat[t] = flat[t] * scale + shift;
    }
    return DONE;
}

/* Fills boxes (n, 2, 3) of a patch (c, x, y, z), with a number for each voxel of box after box if there are any. */
int LOOP(fill_boxes)(float *patch, const int64_t *shape, const int64_t *places, int64_t num_boxes, const double *noise,
                     int64_t num_numbers, double low, double width) {
    int64_t nc = shape[0], nx = shape[1], ny = shape[2], nz = shape[3], needed = 0, place = 0;
    for (int64_t b = 0; b < num_boxes; b++) {
        const int64_t *start = places + 6 * b, *stop = start + 3;
        int64_t voxels = nc;
        for (int axis = 0; axis < 3; axis++) {
            if (stop[axis] <= start[axis]) voxels = 0;
            else if (start[axis] < 0 || stop[axis] > shape[axis + 1]) return OUT_OF_RANGE;
            else voxels *= stop[axis] - start[axis];
        }
        needed += voxels;
    }
    if (num_numbers > 0 && needed > num_numbers) return OUT_OF_RANGE;
    for (int64_t b = 0; b < num_boxes; b++) {
        const int64_t *start = places + 6 * b, *stop = start + 3;
        for (int64_t c = 0; c < nc; c++)
            for (int64_t i = start[0]; i < stop[0]; i++)
                for (int64_t j = start[1]; j < stop[1]; j++) {
                    float *row = patch + ((c * nx + i) * ny + j) * nz;
                    for (int64_t k = start[2]; k < stop[2]; k++)
                        row[k] = (float)(num_numbers > 0 ? low + noise[place++] * width : low);
                }
    }
    return DONE;
}

/* The loop of `color.ColorAndStain` for an image (3, num); the arguments are explained in `native_loops`. */
int LOOP(change_color)(float *image, int64_t num, const float *density, const float *color, const float *gray,
                       float contrast, float least, int64_t is_stained) {
    float *red = image, *green = image + num, *blue = image + 2 * num;
    double total = 0;
    for (int64_t k = 0; k < num; k++) {
        float p = clamp(red[k], least, 1), q = clamp(green[k], least, 1), s = clamp(blue[k], least, 1);
        if (is_stained) {
            const float *d = density;
            float r = -logf(p), g = -logf(q), b = -logf(s);
            p = clamp(expf(-(d[0] * r + d[1] * g + d[2] * b + d[3])), 0, 1);
            q = clamp(expf(-(d[4] * r + d[5] * g + d[6] * b + d[7])), 0, 1);
            s = clamp(expf(-(d[8] * r + d[9] * g + d[10] * b + d[11])), 0, 1);
        }
        red[k] = color[0] * p + color[1] * q + color[2] * s;
        green[k] = color[3] * p + color[4] * q + color[5] * s;
        blue[k] = color[6] * p + color[7] * q + color[8] * s;
        total += gray[0] * red[k] + gray[1] * green[k] + gray[2] * blue[k];
    }
    float mean = (float)(total / (double)num);
    for (int64_t k = 0; k < 3 * num; k++) image[k] = clamp(mean + (image[k] - mean) * contrast, 0, 1);
    return DONE;
}
