/* The part of `sample.c` that depends on the type of positions, STORED, named STORED_NAME. */

/* Positions in voxels, by torch's `grid_sample`. */
INLINE void TYPED(to_voxels)(const float *coordinates, STORED factor, int64_t side, const Rules *rules,
                             STORED *restrict out) {
    const STORED one = 1, half = 0.5f, num = (STORED)(rules->align_corners ? side - 1 : side);
    if (rules->align_corners)
        for (int64_t k = 0; k < rules->num; k++) out[k] = ((STORED)coordinates[k] * factor + one) * half * num;
    else if (rules->is_once)
        for (int64_t k = 0; k < rules->num; k++)
            out[k] = FUSED((STORED)coordinates[k] * factor + one, num, -one) * half;
    else
        for (int64_t k = 0; k < rules->num; k++) out[k] = (((STORED)coordinates[k] * factor + one) * num - one) * half;
}

/* Mirror images about the faces of the outermost voxels or their centers, in torch's order of operations. */
INLINE void TYPED(reflect)(STORED *restrict row, int64_t side, const Rules *rules) {
    const STORED low = rules->align_corners ? 0 : -0.5f, span = (STORED)(rules->align_corners ? side - 1 : side);
    for (int64_t k = 0; k < rules->num; k++) {
        if (span == 0) {
            row[k] = low;
            continue;
        }
        STORED far = row[k] < low ? low - row[k] : row[k] - low, flips = ROUND_DOWN(far / span);
        STORED rest = far - flips * span, pairs = flips / 2;
        if (rest < 0) rest += span; /* the quotient was rounded up to a whole number */
        row[k] = (ROUND_DOWN(pairs) == pairs ? rest : span - rest) + low;
    }
}

/* Maps positions beyond the array to the voxels seen there, and limits positions to its ring. */
INLINE void TYPED(hold)(STORED *restrict row, int64_t side, const Rules *rules) {
    STORED low = 0, high = (STORED)(side - 1);
    if (rules->beyond == REFLECTION) {
        int is_beyond = 0;
        for (int64_t k = 0; k < rules->num; k++) is_beyond |= (row[k] < low) | (row[k] > high);
        /* A place inside that was rounded once may move when torch reflects it: it adds and subtracts half a voxel. */
        if (is_beyond || rules->is_once) TYPED(reflect)(row, side, rules);
    }
    if (rules->beyond == ZEROS) low = -1, high = (STORED)side;
    for (int64_t k = 0; k < rules->num; k++) {
        STORED value = row[k] > low ? row[k] : low; /* also in place of NaN */
        row[k] = value < high ? value : high;
    }
}

/* For each voxel of a row, the first of its eight neighbors in the box and the weights of those behind it. */
INLINE void TYPED(find_between)(const STORED *points, const int64_t *first, const int64_t *shape, int64_t num,
                                const Scratch *own) {
    uint32_t step = 1;
    for (int axis = 2; axis >= 0; step *= (uint32_t)shape[axis + 1], axis--) {
        const STORED *restrict row = points + axis * num;
        float *restrict weight = own->weights + axis * num;
        uint32_t *restrict place = own->place;
        int32_t begin = (int32_t)first[axis], last = (int32_t)shape[axis + 1] - 2;
        for (int64_t k = 0; k < num; k++) {
            /* A place lies in the array or its ring, which begins at -1, so the integer part is the floor. */
            int32_t whole = (int32_t)(row[k] + 1);
            weight[k] = (float)(row[k] - (STORED)(whole - 1));
            uint32_t along = (uint32_t)held(whole - begin, last) * step;
            place[k] = axis == 2 ? along : place[k] + along;
        }
    }
}

/* For each voxel of a row, the nearest one in the box; halfway between two, the even one. */
INLINE void TYPED(find_nearest)(const STORED *points, const int64_t *first, const int64_t *shape, int64_t num,
                                const Scratch *own) {
    uint32_t step = 1;
    for (int axis = 2; axis >= 0; step *= (uint32_t)shape[axis + 1], axis--) {
        const STORED *restrict row = points + axis * num;
        uint32_t *restrict place = own->place;
        int32_t begin = (int32_t)first[axis] - 1, last = (int32_t)shape[axis + 1] - 1;
        for (int64_t k = 0; k < num; k++) {
            /* Numbers of this size have no fraction: adding it rounds to the nearest, halves to even. */
            int32_t whole = (int32_t)(((double)row[k] + 0x1.8p52) - 0x1.8p52);
            uint32_t along = (uint32_t)held(whole - begin, last) * step;
            place[k] = axis == 2 ? along : place[k] + along;
        }
    }
}

/* Fills up to two results at the same positions, one interpolated, one from the nearest voxels; the arguments are
 * explained in `native_loops.sample`. */
int TYPED_LOOP(sample)(const float *line_0, const float *line_1, const float *line_2, const float *theta,
                       const STORED *scale, const float *shifts, const int64_t *sizes, const uint8_t *linear_box,
                       const float *linear_scale, float *linear_out, const uint8_t *near_box, const float *near_scale,
                       float *near_out) {
    const int64_t n0 = sizes[0], n1 = sizes[1], num = sizes[2], *order = sizes + 3, *flags = sizes + 7;
    const int64_t *sides = sizes + 13, *first = sizes + 16, *of_linear = sizes + 19, *of_near = sizes + 29;
    Rules rules = {order, flags[0] != 0, flags[1] != 0, flags[2] != 0, (int)flags[3], num};
    int has_scale = flags[4] != 0, has_shifts = flags[5] != 0;
    for (int n = 0; n < 4; n++)
        if (order[n] < 0 || order[n] > (has_shifts && n < 3 ? 2 : 3)) return OUT_OF_RANGE;
    Part linear = {linear_box, linear_scale, linear_out, of_linear, of_linear + 4, of_linear[9] != 0};
    Part near = {near_box, near_scale, near_out, of_near, of_near + 4, of_near[9] != 0};
    float *memory = new_floats(23 * num + 2);
    if (!memory) return NO_MEMORY;
    STORED *points = (STORED *)memory; /* of the widest type */
    float *rows = memory + 6 * num;
    Scratch own = {rows, rows + num, rows + 4 * num, rows + 7 * num, (uint32_t *)(rows + 8 * num), rows + 9 * num};
    for (int64_t i = 0; i < n0; i++)
        for (int64_t j = 0; j < n1; j++) {
            const float at[4] = {line_0[i], line_1[j], 0, 1};
            if (has_shifts) shift_row(at, line_2, shifts + (i * n1 + j) * num, n0 * n1 * num, num, own.moved);
            for (int axis = 0; axis < 3; axis++) {
                if (has_shifts)
                    sum_moved(theta + 4 * axis, own.moved, &rules, own.coordinates);
                else
                    sum_row(theta + 4 * axis, at, line_2, &rules, own.coordinates);
                STORED factor = has_scale ? scale[axis] : 1;
                TYPED(to_voxels)(own.coordinates, factor, sides[axis], &rules, points + axis * num);
                TYPED(hold)(points + axis * num, sides[axis], &rules);
            }
            if (linear.shape[0] > 0) {
                TYPED(find_between)(points, first, linear.shape, num, &own);
                fill_row(&linear, &own, i, j, num, 1);
            }
            if (near.shape[0] > 0) {
                TYPED(find_nearest)(points, first, near.shape, num, &own);
                fill_row(&near, &own, i, j, num, 0);
            }
        }
    free(memory);
    return DONE;
}

#undef STORED
#undef STORED_NAME
