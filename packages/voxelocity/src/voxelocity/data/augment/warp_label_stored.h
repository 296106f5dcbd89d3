/* The part of `warp.c` that depends on the type of labels: included once for each, with STORED and STORED_NAME
 * defined. */

/* The class with the largest summed weight among the eight neighbors; the smaller index of equals. */
INLINE void TYPED(vote)(const STORED *line, const uint32_t *at, int64_t num, const Plane *plane, const float *wx,
                        STORED *restrict out) {
    int64_t nz = plane->nz, size = plane->ny * nz, step_x = plane->step_x, step_y = plane->shape[2];
    const float *wy = wx + size, *wz = wy + size;
    STORED *restrict c00 = plane->corners, *restrict c01 = c00 + 2 * nz, *restrict c10 = c01 + 2 * nz;
    STORED *restrict c11 = c10 + 2 * nz;
    uint8_t *restrict is_mixed = plane->is_mixed, any_mixed = 0;
    for (int64_t k = 0; k < num; k++) {
        const STORED *base = line + at[k];
        memcpy(c00 + 2 * k, base, 2 * sizeof(STORED));
        memcpy(c01 + 2 * k, base + step_y, 2 * sizeof(STORED));
        memcpy(c10 + 2 * k, base + step_x, 2 * sizeof(STORED));
        memcpy(c11 + 2 * k, base + step_x + step_y, 2 * sizeof(STORED));
    }
    for (int64_t k = 0; k < num; k++) {
        STORED own = c00[2 * k], others = (own ^ c00[2 * k + 1]) | (own ^ c01[2 * k]) | (own ^ c01[2 * k + 1]);
        others |= (own ^ c10[2 * k]) | (own ^ c10[2 * k + 1]) | (own ^ c11[2 * k]) | (own ^ c11[2 * k + 1]);
        is_mixed[k] = others != 0, any_mixed |= others != 0, out[k] = own;
    }
    for (int64_t k = 0; any_mixed && k < num; k++) {
        if (!is_mixed[k]) continue;
        uint16_t labels[8] = {c00[2 * k], c00[2 * k + 1], c01[2 * k], c01[2 * k + 1],
                              c10[2 * k], c10[2 * k + 1], c11[2 * k], c11[2 * k + 1]};
        float shares[8];
        fill_shares(wx[k], wy[k], wz[k], shares);
        out[k] = (STORED)largest_share(labels, shares);
    }
}

INLINE void TYPED(take_nearest)(const STORED *line, const uint32_t *at, int64_t num, const Plane *plane,
                                const float *wx, STORED *restrict out) {
    const float *wy = wx + plane->ny * plane->nz, *wz = wy + plane->ny * plane->nz;
    uint32_t jump_x = (uint32_t)(plane->shape[1] * plane->shape[2]), jump_y = (uint32_t)plane->shape[2];
    uint32_t *restrict nearest = plane->nearest;
    for (int64_t k = 0; k < num; k++)
        nearest[k] = at[k] + (wx[k] >= 0.5f) * jump_x + (wy[k] >= 0.5f) * jump_y + (wz[k] >= 0.5f);
    for (int64_t k = 0; k < num; k++) out[k] = line[nearest[k]];
}

/* Class at any place, near the border or beyond it, where everything is class 0. */
INLINE STORED TYPED(label_at)(const STORED *label, const int64_t *shape, Place at, int votes) {
    if (!sees(at, shape)) return 0;
    float half = votes ? 0.0f : 0.5f;
    int64_t ix = (int64_t)floorf(at.x + half), iy = (int64_t)floorf(at.y + half), iz = (int64_t)floorf(at.z + half);
    if (!votes) {
        if (ix < 0 || iy < 0 || iz < 0 || ix >= shape[0] || iy >= shape[1] || iz >= shape[2]) return 0;
        return label[(ix * shape[1] + iy) * shape[2] + iz];
    }
    float wx = at.x - (float)ix, wy = at.y - (float)iy, wz = at.z - (float)iz, shares[8];
    uint16_t labels[8];
    for (int corner = 0; corner < 8; corner++) {
        int dx = corner >> 2, dy = (corner >> 1) & 1, dz = corner & 1;
        int64_t qx = ix + dx, qy = iy + dy, qz = iz + dz;
        int is_in = qx >= 0 && qy >= 0 && qz >= 0 && qx < shape[0] && qy < shape[1] && qz < shape[2];
        labels[corner] = is_in ? label[(qx * shape[1] + qy) * shape[2] + qz] : 0;
        shares[corner] = (dx ? wx : 1 - wx) * (dy ? wy : 1 - wy) * (dz ? wz : 1 - wz);
    }
    return (STORED)largest_share(labels, shares);
}

/* A plane of the label. */
INLINE void TYPED(fill_label)(const STORED *label, const Plane *plane, int votes, STORED *out) {
    for (int64_t j = 0; j < plane->ny; j++) {
        Row row = plane->rows[j];
        int64_t first = j * plane->nz + row.start;
        if (votes)
            TYPED(vote)(label, plane->place + first, row.stop - row.start, plane, plane->weights + first, out + first);
        else
            TYPED(take_nearest)(label, plane->place + first, row.stop - row.start, plane, plane->weights + first,
                                out + first);
        STORED *line = out + j * plane->nz;
        memset(line, 0, row.first * sizeof *line);
        memset(line + row.last, 0, (plane->nz - row.last) * sizeof *line);
        for (int64_t k = row.first; k < row.last; k++) {
            if (k == row.start) k = row.stop;
            if (k >= row.last) break;
            line[k] = TYPED(label_at)(label, plane->shape, place_of(plane, j, k), votes);
        }
    }
}

/* A row of a cropped label: the voxels from `first` on, forward or backward, and class 0 around them. */
INLINE void TYPED(crop_label)(const STORED *from, int64_t first, int64_t num, int64_t length, int is_flipped,
                              STORED *line) {
    STORED *restrict to = line + first;
    memset(line, 0, length * sizeof *line);
    for (int64_t k = 0; is_flipped && k < num; k++) to[k] = from[num - 1 - k];
    if (!is_flipped && num > 0) memcpy(to, from, num * sizeof *line);
}

#undef STORED
#undef STORED_NAME
