/* The loops of `loss.c` for one type of logits, STORED, named STORED_NAME. */

/* The logits of a class, which are `step` apart in memory. */
INLINE void TYPED(read_line)(const STORED *from, int64_t num, int64_t step, float *to) {
    STORED line[MOST_VOXELS];
    for (int64_t v = 0; v < num; v++) line[v] = from[v * step];
    for (int64_t v = 0; v < num; v += LANES) store_float32(to + v, TYPED(load)(line + v, LANES), LANES);
}

INLINE void TYPED(write_line)(const float *from, int64_t num, int64_t step, STORED *to) {
    STORED line[MOST_VOXELS];
    for (int64_t v = 0; v < num; v += LANES) TYPED(store)(line + v, lanes_at(from + v), LANES);
    for (int64_t v = 0; v < num; v++) to[v * step] = line[v];
}

/* The tile of voxels from `first` on; 0 if a voxel that counts has a label that is not a class. */
INLINE int TYPED(read_tile)(const struct loss_work *work, struct tile *tile, int64_t sample, int64_t first,
                            int64_t num) {
    int64_t classes = work->classes, is_inside = 1, start = sample * work->voxels + first;
    const STORED *from = (const STORED *)work->logits + sample * work->voxels * classes + first * work->voxel_step;
    tile->num = (num + LANES - 1) / LANES * LANES;
    read_labels(work, start, num, tile);
    for (int64_t v = 0; v < tile->num; v++) {
        int32_t label = tile->label[v];
        tile->known[v] = v < num && label != work->ignored ? -1 : 0;
        is_inside &= !tile->known[v] || (label >= 0 && label < classes);
    }
    for (int64_t k = 0; k < classes; k++) {
        float *to = tile->logits + k * tile->num;
        TYPED(read_line)(from + k * work->class_step, num, work->voxel_step, to);
        for (int64_t v = num; v < tile->num; v++) to[v] = 0;
    }
    return is_inside || !work->has_term;
}

static void TYPED(sums_part)(const void *given, int64_t number) {
    const struct loss_work *work = given;
    int64_t sample = number / work->chunks, start = number % work->chunks * PART, size = voxels_of_tile(work);
    int64_t end = smaller(start + PART, work->voxels);
    double *part = work->parts + number * (3 * work->classes + 2);
    struct tile tile;
    memset(part, 0, (3 * work->classes + 2) * sizeof *part);
    if (!open_tile(work, &tile)) return;
    for (int64_t first = start; first < end; first += size) {
        if (!TYPED(read_tile)(work, &tile, sample, first, smaller(size, end - first))) {
            fail(work, OUT_OF_RANGE);
            break;
        }
        for (int64_t v = 0; v < tile.num; v++) {
            int is_class = tile.label[v] >= 0 && tile.label[v] < work->classes;
            tile.right[v] = is_class ? tile.logits[tile.label[v] * tile.num + v] : 0;
        }
        make_exponentials(work, &tile);
        make_probabilities(work, &tile);
        add_sums(work, &tile, part);
    }
    close_tile(&tile);
}

static void TYPED(gradient_part)(const void *given, int64_t number) {
    const struct loss_work *work = given;
    int64_t sample = number / work->chunks, start = number % work->chunks * PART, size = voxels_of_tile(work);
    int64_t end = smaller(start + PART, work->voxels), classes = work->classes;
    const float *factors = work->factors + sample * 2 * classes;
    struct tile tile;
    if (!open_tile(work, &tile)) return;
    for (int64_t first = start; first < end; first += size) {
        int64_t num = smaller(size, end - first);
        STORED *to = (STORED *)work->out + sample * work->voxels * classes + first * work->voxel_step;
        TYPED(read_tile)(work, &tile, sample, first, num);
        make_exponentials(work, &tile);
        make_probabilities(work, &tile);
        make_gradient(work, &tile, factors, factors + classes);
        for (int64_t k = 0; k < classes; k++)
            TYPED(write_line)(tile.logits + k * tile.num, num, work->voxel_step, to + k * work->class_step);
    }
    close_tile(&tile);
}

/* The sums (b, 3 classes + 2) of each patch. `sizes` are b, classes, voxels, the steps in memory from voxel to voxel
 * and from class to class, the label that does not count or a number that no label is, whether the mean over voxels is
 * asked for, the length of `parts`, which is scratch, and the bytes of a label. */
int TYPED_LOOP(loss_sums)(const STORED *logits, const void *label, const int64_t *sizes, double *parts, double *sums,
                          int64_t pool) {
    struct loss_work work = loss_work_of(sizes, label);
    int64_t width = 3 * work.classes + 2;
    if (!can_run(&work) || sizes[7] < work.batch * work.chunks * width) return OUT_OF_RANGE;
    work.logits = logits, work.parts = parts;
    share(pool, work.batch * work.chunks, TYPED(sums_part), &work);
    memset(sums, 0, work.batch * width * sizeof *sums);
    for (int64_t part = 0; part < work.batch * work.chunks; part++)
        for (int64_t k = 0; k < width; k++) sums[part / work.chunks * width + k] += parts[part * width + k];
    return work.status;
}

/* The gradient of the logits, in their order, from that of the mean of the voxels, `factor`, and those of the sums. */
int TYPED_LOOP(loss_gradient)(const STORED *logits, const void *label, const int64_t *sizes, const float *factors,
                              const float *factor, STORED *out, int64_t pool) {
    struct loss_work work = loss_work_of(sizes, label);
    if (!can_run(&work)) return OUT_OF_RANGE;
    work.logits = logits, work.out = out, work.factors = factors, work.factor = work.has_term ? *factor : 0;
    share(pool, work.batch * work.chunks, TYPED(gradient_part), &work);
    return work.status;
}
