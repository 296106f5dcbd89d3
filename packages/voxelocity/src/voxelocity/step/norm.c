/* Instance norm with a leaky ReLU behind it, of features with the channels innermost, forward and backward.
 *
 * A patch is divided into chunks of rows, small enough to stay in a core's cache; each leaves its sums in a row of its
 * own, which are then added in their order. */
#include "../core/lanes.h"

/* `features` and `slopes` are read, `out` is written: (b, rows, channels). The other arrays are float32. */
struct norm_work {
    const void *features, *slopes;
    void *out;
    int64_t num_samples, num_rows, num_channels, size, num_chunks, num_groups;
    const float *moments, *weight, *bias, *means;
    float *parts;
    float slope;
};

INLINE struct norm_work norm_work_of(const int64_t *sizes) {
    struct norm_work work = {.num_samples = sizes[0], .num_rows = sizes[1], .num_channels = sizes[2]};
    work.size = sizes[3], work.num_groups = sizes[4];
    work.num_chunks = (work.num_rows + work.size - 1) / work.size;
    return work;
}

/* Of a part: its sample, its first number in memory and how many rows it has. */
INLINE int64_t rows_of_part(const struct norm_work *work, int64_t number, int64_t *sample, int64_t *first) {
    int64_t row = number % work->num_chunks * work->size;
    *sample = number / work->num_chunks;
    *first = (*sample * work->num_rows + row) * work->num_channels;
    return smaller(work->size, work->num_rows - row);
}

/* Means and 1 / deviations (b, 2, channels) of groups of channels, from means and squared differences of chunks, in
 * float64 (Chan et al., 10.1080/00031305.1983.10483115). */
static void add_moments(const struct norm_work *work, float *moments, float eps) {
    int64_t channels = work->num_channels, chunks = work->num_chunks, width = channels / work->num_groups;
    double num = (double)work->num_rows * width;
    for (int64_t sample = 0; sample < work->num_samples; sample++)
        for (int64_t first = 0; first < channels; first += width) {
            const float *parts = work->parts + sample * chunks * 2 * channels;
            double total = 0, squares = 0;
            for (int64_t k = 0; k < chunks; k++)
                for (int64_t c = first; c < first + width; c++)
                    total += (double)parts[2 * k * channels + c] * smaller(work->size, work->num_rows - k * work->size);
            double mean = total / num;
            for (int64_t k = 0; k < chunks; k++)
                for (int64_t c = first; c < first + width; c++) {
                    double off = parts[2 * k * channels + c] - mean;
                    squares += parts[(2 * k + 1) * channels + c];
                    squares += off * off * smaller(work->size, work->num_rows - k * work->size);
                }
            for (int64_t c = first; c < first + width; c++) {
                moments[2 * sample * channels + c] = (float)mean;
                moments[(2 * sample + 1) * channels + c] = (float)(1 / sqrt(squares / num + eps));
            }
        }
}

/* The sums of gradients of chunks: as means (b, 2, channels) over rows, as gradients (2, channels) of bias and weight,
 * and as that of the slope. */
static void add_slopes(const struct norm_work *work, float *means, float *of_weights, float *of_slope) {
    int64_t channels = work->num_channels, chunks = work->num_chunks;
    double whole = 0;
    for (int64_t c = 0; c < channels; c++) {
        double sums[2] = {0, 0};
        for (int64_t sample = 0; sample < work->num_samples; sample++) {
            const float *parts = work->parts + sample * chunks * 3 * channels + c;
            for (int64_t which = 0; which < 3; which++) {
                double total = 0;
                for (int64_t k = 0; k < chunks; k++) total += parts[(3 * k + which) * channels];
                if (which == 2) {
                    whole += total;
                    continue;
                }
                sums[which] += total;
                means[(2 * sample + which) * channels + c] = (float)(total / work->num_rows);
            }
        }
        of_weights[c] = (float)sums[0], of_weights[channels + c] = (float)sums[1];
    }
    *of_slope = (float)whole;
}

#define STORED float
#define STORED_NAME float32
#include "norm_stored.h"
#undef STORED
#undef STORED_NAME
/* bfloat16, by its bits. */
#define STORED uint16_t
#define STORED_NAME uint16
#include "norm_stored.h"
