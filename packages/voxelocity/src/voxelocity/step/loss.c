/* The sums of a loss over the voxels of a batch, and the gradient of the logits, in one pass each.
 *
 * Logits of a tile of voxels are laid out by class first, whatever their order in memory. */
#include "../core/lanes.h"

enum {
    MOST_CLASSES = 65535,
    MOST_VOXELS = 256,    /* of a tile */
    TILE = 256 * 16,      /* its logits, of up to 256 classes */
    WIDE_TILE = 256 * 256, /* of more */
    PART = 16384,         /* voxels of a part of the work */
};

/* `logits` (b, v, k) or (b, k, v), with these steps from voxel to voxel and from class to class; `label` (b, v).
 * Forward, `parts` (b, chunks, 3 k + 2) get the sums of each chunk: of each class the probability where it is true, the
 * probability, and its voxels; then minus the log of the probability of what is true, and the voxels that count.
 * Backward, `factors` (b, 2, k) are of the probability where the class is true, and of the probability; `factor` is
 * that of the mean over voxels. `label` has uint8, or int32 if it has `label_bytes` of 4. */
struct loss_work {
    const void *logits, *label;
    void *out;
    int64_t batch, classes, voxels, voxel_step, class_step, ignored, has_term, label_bytes, chunks;
    const float *factors;
    double *parts;
    float factor;
    int status;
};

struct tile {
    int64_t num; /* voxels, rounded up to full lanes */
    float *logits; /* `own`, or allocated for more classes */
    float own[TILE], total[MOST_VOXELS], top[MOST_VOXELS], right[MOST_VOXELS];
    int32_t label[MOST_VOXELS], known[MOST_VOXELS]; /* known: all bits or none */
};

INLINE struct loss_work loss_work_of(const int64_t *sizes, const void *label) {
    struct loss_work work = {.batch = sizes[0], .classes = sizes[1], .voxels = sizes[2], .voxel_step = sizes[3],
                             .class_step = sizes[4], .ignored = sizes[5], .has_term = sizes[6],
                             .label_bytes = sizes[8], .label = label};
    work.chunks = (work.voxels + PART - 1) / PART;
    return work;
}

INLINE int can_run(const struct loss_work *work) {
    int is_label = work->label_bytes == 1 || work->label_bytes == 4;
    return is_label && work->classes >= 1 && work->classes <= MOST_CLASSES;
}

/* Many classes at a time are far apart in memory: then a tile is larger, so that each of them has a line of voxels. */
INLINE int64_t voxels_of_tile(const struct loss_work *work) {
    int64_t num = (work->classes <= TILE / 16 ? TILE : WIDE_TILE) / work->classes / LANES * LANES;
    return num < LANES ? LANES : smaller(num, MOST_VOXELS);
}

/* The status of a part that cannot be computed is that of the work. */
INLINE void fail(const struct loss_work *work, int status) {
    __atomic_store_n(&((struct loss_work *)work)->status, status, __ATOMIC_RELAXED);
}

INLINE int open_tile(const struct loss_work *work, struct tile *tile) {
    int64_t num = work->classes * voxels_of_tile(work);
    tile->logits = num <= TILE ? tile->own : new_floats(num);
    if (!tile->logits) fail(work, NO_MEMORY);
    return tile->logits != NULL;
}

INLINE void close_tile(struct tile *tile) {
    if (tile->logits != tile->own) free(tile->logits);
}

/* The labels of the voxels from `first` on, and -1, which is no class, after them. */
INLINE void read_labels(const struct loss_work *work, int64_t first, int64_t num, struct tile *tile) {
    const uint8_t *bytes = (const uint8_t *)work->label + first;
    if (work->label_bytes == 1)
        for (int64_t v = 0; v < num; v++) tile->label[v] = bytes[v];
    else
        memcpy(tile->label, (const int32_t *)work->label + first, num * sizeof(int32_t));
    for (int64_t v = num; v < tile->num; v++) tile->label[v] = -1;
}

/* Of numbers that are not positive (Cephes' polynomial, within 2 units in the last place); below -87 about 1e-38. */
INLINE lanes exp_of(lanes value) {
    value = choose(value < -87.0f, all_of(-87), value);
    masks whole = __builtin_convertvector(value * 1.44269504f - 0.5f, masks);
    lanes steps = __builtin_convertvector(whole, lanes);
    lanes rest = value - steps * 0.693359375f + steps * 2.12194440e-4f;
    lanes sum = rest * 1.9875691500e-4f + 1.3981999507e-3f;
    sum = sum * rest + 8.3334519073e-3f;
    sum = sum * rest + 4.1665795894e-2f;
    sum = sum * rest + 1.6666665459e-1f;
    sum = sum * rest + 5.0000001201e-1f;
    sum = sum * (rest * rest) + rest + 1.0f;
    return sum * (lanes)((whole + 127) << 23);
}

INLINE lanes lanes_at(const float *from) { return load_float32(from, LANES); }

INLINE masks masks_at(const int32_t *from) {
    masks value;
    memcpy(&value, from, sizeof value);
    return value;
}

/* Replaces the logits of a tile by exponentials, with their sums and the largest logits. */
INLINE void make_exponentials(const struct loss_work *work, struct tile *tile) {
    int64_t num = tile->num;
    for (int64_t v = 0; v < num; v += LANES) {
        float *at = tile->logits + v;
        lanes top = lanes_at(at), total = {0};
        /* A NaN fails the comparison and stays, or enters through its exponential. */
        for (int64_t k = 1; k < work->classes; k++) {
            lanes other = lanes_at(at + k * num);
            top = choose(top < other, other, top);
        }
        for (int64_t k = 0; k < work->classes; k++) {
            lanes made = exp_of(lanes_at(at + k * num) - top);
            store_float32(at + k * num, made, LANES);
            total += made;
        }
        store_float32(tile->top + v, top, LANES);
        store_float32(tile->total + v, total, LANES);
    }
}

/* Makes probabilities of exponentials, 0 where a voxel does not count. */
INLINE void make_probabilities(const struct loss_work *work, struct tile *tile) {
    int64_t num = tile->num;
    float *logits = tile->logits;
    for (int64_t v = 0; v < num; v += LANES) {
        lanes inverse = choose(masks_at(tile->known + v), 1.0f / lanes_at(tile->total + v), all_of(0));
        for (int64_t k = 0; k < work->classes; k++) {
            float *at = logits + k * num + v;
            store_float32(at, lanes_at(at) * inverse, LANES);
        }
    }
}

/* Adds the sums of a tile to `part`. */
INLINE void add_sums(const struct loss_work *work, struct tile *tile, double *part) {
    int64_t classes = work->classes;
    for (int64_t k = 0; k < classes; k++) {
        lanes agreed = {0}, predicted = {0};
        masks number = {0};
        for (int64_t v = 0; v < tile->num; v += LANES) {
            lanes probability = lanes_at(tile->logits + k * tile->num + v);
            masks is_class = masks_at(tile->label + v) == (int32_t)k;
            agreed += choose(is_class, probability, all_of(0));
            predicted += probability;
            number -= is_class;
        }
        part[k] += sum_of(agreed);
        part[classes + k] += sum_of(predicted);
        part[2 * classes + k] += sum_of(__builtin_convertvector(number, lanes));
    }
    lanes term = {0};
    masks known = {0};
    for (int64_t v = 0; v < tile->num; v += LANES) {
        known -= masks_at(tile->known + v);
        term += choose(masks_at(tile->known + v), lanes_at(tile->top + v) - lanes_at(tile->right + v), all_of(0));
    }
    /* The logarithm of a product of eight sums, each at most 65,535, in place of eight logarithms. */
    double logs = 0;
    for (int64_t v = 0; v < tile->num; v += LANES * LANES) {
        lanes product = all_of(1);
        for (int64_t w = v; w < smaller(v + LANES * LANES, tile->num); w += LANES)
            product *= choose(masks_at(tile->known + w), lanes_at(tile->total + w), all_of(1));
        for (int k = 0; k < LANES; k++) logs += logf(product[k]);
    }
    part[3 * classes] += sum_of(term) + logs;
    part[3 * classes + 1] += sum_of(__builtin_convertvector(known, lanes));
}

/* Makes the gradient of the logits of probabilities. */
INLINE void make_gradient(const struct loss_work *work, struct tile *tile, const float *of_true, const float *of_all) {
    int64_t num = tile->num;
    for (int64_t v = 0; v < num; v += LANES) {
        masks label = masks_at(tile->label + v);
        lanes mean = {0}, factor = choose(masks_at(tile->known + v), all_of(work->factor), all_of(0));
        float *at = tile->logits + v;
        for (int64_t k = 0; k < work->classes; k++)
            mean += lanes_at(at + k * num) *
                    (of_all[k] + choose(label == (int32_t)k, all_of(of_true[k]), all_of(0)));
        for (int64_t k = 0; k < work->classes; k++) {
            masks is_class = label == (int32_t)k;
            lanes pull = of_all[k] + choose(is_class, all_of(of_true[k]), all_of(0));
            lanes made = lanes_at(at + k * num) * (pull + (factor - mean)) - choose(is_class, factor, all_of(0));
            store_float32(at + k * num, made, LANES);
        }
    }
}

#define STORED float
#define STORED_NAME float32
#include "loss_stored.h"
#undef STORED
#undef STORED_NAME
/* bfloat16, by its bits. */
#define STORED uint16_t
#define STORED_NAME uint16
#include "loss_stored.h"
