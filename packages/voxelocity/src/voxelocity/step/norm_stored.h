/* The loops of `norm.c` for one type of features, STORED, named STORED_NAME. */

/* Means of the rows and sums of squared differences from them, (2, channels), of `num` channels from `c` on. */
INLINE void TYPED(measure_lanes)(const struct norm_work *work, const STORED *from, int64_t rows, float *part, int64_t c,
                                 int64_t num) {
    int64_t step = work->num_channels, r;
    lanes sum = {0}, other = {0}, squares = {0}, others = {0};
    for (r = 0; r + 2 <= rows; r += 2) {
        sum += TYPED(load)(from + r * step + c, num);
        other += TYPED(load)(from + (r + 1) * step + c, num);
    }
    if (r < rows) sum += TYPED(load)(from + r * step + c, num);
    lanes mean = (sum + other) / (float)rows;
    for (r = 0; r + 2 <= rows; r += 2) {
        lanes off = TYPED(load)(from + r * step + c, num) - mean;
        lanes next = TYPED(load)(from + (r + 1) * step + c, num) - mean;
        squares += off * off;
        others += next * next;
    }
    if (r < rows) {
        lanes off = TYPED(load)(from + r * step + c, num) - mean;
        squares += off * off;
    }
    store_float32(part + c, mean, num);
    store_float32(part + step + c, squares + others, num);
}

static void TYPED(measure_part)(const void *given, int64_t number) {
    const struct norm_work *work = given;
    int64_t sample, first, c, rows = rows_of_part(work, number, &sample, &first), channels = work->num_channels;
    const STORED *from = (const STORED *)work->features + first;
    float *part = work->parts + 2 * number * channels;
    for (c = 0; c + LANES <= channels; c += LANES) TYPED(measure_lanes)(work, from, rows, part, c, LANES);
    if (c < channels) TYPED(measure_lanes)(work, from, rows, part, c, channels - c);
}

INLINE void TYPED(apply_lanes)(const struct norm_work *work, int64_t first, int64_t rows, int64_t sample, int64_t c,
                               int64_t num) {
    const STORED *from = (const STORED *)work->features + first + c;
    STORED *to = (STORED *)work->out + first + c;
    int64_t step = work->num_channels;
    lanes mean = load_float32(work->moments + 2 * sample * step + c, num);
    lanes scale = load_float32(work->moments + (2 * sample + 1) * step + c, num) * load_float32(work->weight + c, num);
    lanes shift = load_float32(work->bias + c, num);
    for (int64_t r = 0; r < rows; r++) {
        lanes value = (TYPED(load)(from + r * step, num) - mean) * scale + shift;
        TYPED(store)(to + r * step, choose(value > 0, value, value * work->slope), num);
    }
}

static void TYPED(apply_part)(const void *given, int64_t number) {
    const struct norm_work *work = given;
    int64_t sample, first, c, rows = rows_of_part(work, number, &sample, &first), channels = work->num_channels;
    for (c = 0; c + LANES <= channels; c += LANES) TYPED(apply_lanes)(work, first, rows, sample, c, LANES);
    if (c < channels) TYPED(apply_lanes)(work, first, rows, sample, c, channels - c);
}

/* Sums (3, channels) over the rows: of the gradient before the activation, of that times the normed features, and of
 * what the gradient of the slope is made of. */
INLINE void TYPED(measure_back_lanes)(const struct norm_work *work, int64_t first, int64_t rows, int64_t sample,
                                      float *part, int64_t c, int64_t num) {
    const STORED *from = (const STORED *)work->features + first + c, *slopes = (const STORED *)work->slopes + first + c;
    int64_t step = work->num_channels;
    lanes mean = load_float32(work->moments + 2 * sample * step + c, num);
    lanes scale = load_float32(work->moments + (2 * sample + 1) * step + c, num);
    lanes weight = load_float32(work->weight + c, num), bias = load_float32(work->bias + c, num);
    lanes sum = {0}, product = {0}, below = {0};
    for (int64_t r = 0; r < rows; r++) {
        lanes normed = (TYPED(load)(from + r * step, num) - mean) * scale, value = normed * weight + bias;
        lanes outer = TYPED(load)(slopes + r * step, num), inner = choose(value > 0, outer, outer * work->slope);
        sum += inner;
        product += inner * normed;
        below += choose(value > 0, all_of(0), outer * value);
    }
    store_float32(part + c, sum, num);
    store_float32(part + step + c, product, num);
    store_float32(part + 2 * step + c, below, num);
}

static void TYPED(measure_back_part)(const void *given, int64_t number) {
    const struct norm_work *work = given;
    int64_t sample, first, c, rows = rows_of_part(work, number, &sample, &first), channels = work->num_channels;
    float *part = work->parts + 3 * number * channels;
    for (c = 0; c + LANES <= channels; c += LANES) TYPED(measure_back_lanes)(work, first, rows, sample, part, c, LANES);
    if (c < channels) TYPED(measure_back_lanes)(work, first, rows, sample, part, c, channels - c);
}

INLINE void TYPED(apply_back_lanes)(const struct norm_work *work, int64_t first, int64_t rows, int64_t sample,
                                    int64_t c, int64_t num) {
    const STORED *from = (const STORED *)work->features + first + c, *slopes = (const STORED *)work->slopes + first + c;
    STORED *to = (STORED *)work->out + first + c;
    int64_t step = work->num_channels;
    lanes mean = load_float32(work->moments + 2 * sample * step + c, num);
    lanes scale = load_float32(work->moments + (2 * sample + 1) * step + c, num);
    lanes weight = load_float32(work->weight + c, num), bias = load_float32(work->bias + c, num);
    lanes of_mean = load_float32(work->means + 2 * sample * step + c, num);
    lanes of_scale = load_float32(work->means + (2 * sample + 1) * step + c, num), whole = scale * weight;
    for (int64_t r = 0; r < rows; r++) {
        lanes normed = (TYPED(load)(from + r * step, num) - mean) * scale, value = normed * weight + bias;
        lanes outer = TYPED(load)(slopes + r * step, num), inner = choose(value > 0, outer, outer * work->slope);
        TYPED(store)(to + r * step, (inner - of_mean - normed * of_scale) * whole, num);
    }
}

static void TYPED(apply_back_part)(const void *given, int64_t number) {
    const struct norm_work *work = given;
    int64_t sample, first, c, rows = rows_of_part(work, number, &sample, &first), channels = work->num_channels;
    for (c = 0; c + LANES <= channels; c += LANES) TYPED(apply_back_lanes)(work, first, rows, sample, c, LANES);
    if (c < channels) TYPED(apply_back_lanes)(work, first, rows, sample, c, channels - c);
}

/* `out` of `features` (b, rows, channels), and the moments (b, 2, channels) for the way back. `sizes` are b, rows,
 * channels, rows of a chunk and groups of channels; `parts` is scratch of (b, chunks, 2, channels). */
int TYPED_LOOP(norm_forward)(const STORED *features, const int64_t *sizes, const float *weight, const float *bias,
                             const float *slope, float eps, float *parts, float *moments, STORED *out, int64_t pool) {
    struct norm_work work = norm_work_of(sizes);
    work.features = features, work.out = out, work.parts = parts, work.moments = moments;
    work.weight = weight, work.bias = bias, work.slope = *slope;
    share(pool, work.num_samples * work.num_chunks, TYPED(measure_part), &work);
    add_moments(&work, moments, eps);
    share(pool, work.num_samples * work.num_chunks, TYPED(apply_part), &work);
    return DONE;
}

/* The gradients of `features`, in `out`, of bias and weight (2, channels), and of the slope (1,), from those of the
 * result, `slopes`. `parts` is scratch of (b, chunks, 3, channels), and `means` of (b, 2, channels). */
int TYPED_LOOP(norm_backward)(const STORED *features, const STORED *slopes, const int64_t *sizes, const float *moments,
                              const float *weight, const float *bias, const float *slope, float *parts, float *means,
                              STORED *out, float *of_weights, float *of_slope, int64_t pool) {
    struct norm_work work = norm_work_of(sizes);
    work.features = features, work.slopes = slopes, work.out = out, work.parts = parts, work.moments = moments;
    work.weight = weight, work.bias = bias, work.means = means, work.slope = *slope;
    share(pool, work.num_samples * work.num_chunks, TYPED(measure_back_part), &work);
    add_slopes(&work, means, of_weights, of_slope);
    share(pool, work.num_samples * work.num_chunks, TYPED(apply_back_part), &work);
    return DONE;
}
