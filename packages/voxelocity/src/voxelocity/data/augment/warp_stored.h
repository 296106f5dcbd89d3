/* The part of `warp.c` that depends on the type of stored voxels: included once for each, with STORED and STORED_NAME
 * defined. */

/* Intensity at any place, near the border or beyond it. */
INLINE float TYPED(image_at)(const STORED *channel, const int64_t *shape, Place at, float factor, float shift) {
    float total = 0;
    if (!sees(at, shape)) return total;
    int64_t ix = (int64_t)floorf(at.x), iy = (int64_t)floorf(at.y), iz = (int64_t)floorf(at.z);
    float wx = at.x - (float)ix, wy = at.y - (float)iy, wz = at.z - (float)iz;
    for (int corner = 0; corner < 8; corner++) {
        int dx = corner >> 2, dy = (corner >> 1) & 1, dz = corner & 1;
        int64_t qx = ix + dx, qy = iy + dy, qz = iz + dz;
        if (qx < 0 || qy < 0 || qz < 0 || qx >= shape[0] || qy >= shape[1] || qz >= shape[2]) continue;
        float share = (dx ? wx : 1 - wx) * (dy ? wy : 1 - wy) * (dz ? wz : 1 - wz);
        total += share * ((float)channel[(qx * shape[1] + qy) * shape[2] + qz] * factor + shift);
    }
    return total;
}

/* A plane of one channel. Neighbors are loaded one by one, then summed, as only the sums can use wide registers. */
INLINE void TYPED(fill_image)(const STORED *channel, const Plane *plane, const float *scale, float *out) {
    const int64_t *shape = plane->shape, ny = plane->ny, nz = plane->nz, size = ny * nz;
    int64_t step_x = plane->step_x, step_y = shape[2];
    float factor = scale[0], shift = scale[1], everywhere = scale[2], both = shift + everywhere;
    STORED *restrict c00 = plane->corners, *restrict c01 = c00 + 2 * nz;
    STORED *restrict c10 = c01 + 2 * nz, *restrict c11 = c10 + 2 * nz;
    for (int64_t j = 0; j < ny; j++) {
        Row row = plane->rows[j];
        int64_t first = j * nz + row.start, num = row.stop - row.start;
        const uint32_t *at = plane->place + first;
        for (int64_t k = 0; k < num; k++) {
            const STORED *base = channel + at[k];
            memcpy(c00 + 2 * k, base, 2 * sizeof(STORED));
            memcpy(c01 + 2 * k, base + step_y, 2 * sizeof(STORED));
            memcpy(c10 + 2 * k, base + step_x, 2 * sizeof(STORED));
            memcpy(c11 + 2 * k, base + step_x + step_y, 2 * sizeof(STORED));
        }
        const float *restrict wx = plane->weights + first, *restrict wy = wx + size, *restrict wz = wy + size;
        float *restrict inside = out + first;
        for (int64_t k = 0; k < num; k++) {
            float v00 = mix((float)c00[2 * k], (float)c00[2 * k + 1], wz[k]);
            float v01 = mix((float)c01[2 * k], (float)c01[2 * k + 1], wz[k]);
            float v10 = mix((float)c10[2 * k], (float)c10[2 * k + 1], wz[k]);
            float v11 = mix((float)c11[2 * k], (float)c11[2 * k + 1], wz[k]);
            inside[k] = mix(mix(v00, v01, wy[k]), mix(v10, v11, wy[k]), wx[k]) * factor + both;
        }
        float *line = out + j * nz;
        for (int64_t k = 0; k < row.first; k++) line[k] = everywhere;
        for (int64_t k = row.last; k < nz; k++) line[k] = everywhere;
        for (int64_t k = row.first; k < row.last; k++) {
            if (k == row.start) k = row.stop;
            if (k >= row.last) break;
            line[k] = TYPED(image_at)(channel, shape, place_of(plane, j, k), factor, shift) + everywhere;
        }
    }
}

/* Fills a patch from a box of stored voxels; the arguments are explained in `native_loops.warp`. */
int TYPED_LOOP(warp)(const STORED *image, const void *label, const int64_t *shapes, const double *origin,
                     const double *step, const float *control, const float *weights_x, const float *weights_y,
                     const int32_t *first_z, const float *weights_z, const float *scale, float *out_image,
                     void *out_label) {
    const int64_t num_channels = shapes[0], *shape = shapes + 1, *grid = shapes + 4;
    const int64_t nx = shapes[7], ny = shapes[8], nz = shapes[9], votes = shapes[10], label_bytes = shapes[11];
    const int64_t size = ny * nz, num_voxels = shape[0] * shape[1] * shape[2];
    for (int64_t k = 0; grid[0] > 0 && k < nz; k++)
        if (first_z[k] < 0 || first_z[k] + 4 > grid[2]) return OUT_OF_RANGE;
    Plane plane = {.shape = shape, .ny = ny, .nz = nz};
    void *memory = open_plane(&plane, grid);
    if (!memory) return NO_MEMORY;
    for (int64_t i = 0; i < nx; i++) {
        find_points(i, origin, step, &plane);
        if (grid[0] > 0) {
            sum_planes(control, grid, weights_x + i * grid[0], plane.shifts);
            shift_points(grid, weights_y, first_z, weights_z, &plane);
        }
        plane.step_x = grid[0] == 0 && is_level(&plane, step) ? 0 : shape[1] * shape[2];
        find_neighbors(&plane);
        for (int64_t c = 0; c < num_channels; c++)
            TYPED(fill_image)(image + c * num_voxels, &plane, scale + 3 * c, out_image + (c * nx + i) * size);
        if (label_bytes == 1)
            fill_label_uint8(label, &plane, votes != 0, (uint8_t *)out_label + i * size);
        else
            fill_label_uint16(label, &plane, votes != 0, (uint16_t *)out_label + i * size);
    }
    free(memory);
    return DONE;
}

/* Fills a patch whose voxels are those of a box, flipped or not; the arguments are explained in `native_loops.crop`. */
int TYPED_LOOP(crop)(const STORED *image, const void *label, const int64_t *box, const float *scale,
                     float *out_image, void *out_label) {
    const int64_t num_channels = box[0], nx = box[1], ny = box[2], nz = box[3], label_bytes = box[18];
    const int64_t *start = box + 4, *stop = box + 7, *flips = box + 10, *steps = box + 13, *label_steps = box + 16;
    for (int64_t i = 0; i < nx; i++) {
        int64_t x = flips[0] ? nx - 1 - i : i;
        for (int64_t j = 0; j < ny; j++) {
            int64_t y = flips[1] ? ny - 1 - j : j, first = 0, last = 0;
            if (start[0] <= x && x < stop[0] && start[1] <= y && y < stop[1]) {
                first = start[2] < 0 ? 0 : smaller(start[2], nz);
                last = stop[2] < first ? first : smaller(stop[2], nz);
            }
            int64_t num = last - first, dx = x - start[0], dy = y - start[1], dz = first - start[2];
            if (flips[2]) first = nz - last;
            for (int64_t c = 0; c < num_channels; c++) {
                float factor = scale[3 * c], everywhere = scale[3 * c + 2], shift = scale[3 * c + 1] + everywhere;
                float *restrict line = out_image + ((c * nx + i) * ny + j) * nz, *restrict to = line + first;
                for (int64_t k = 0; k < first; k++) line[k] = everywhere;
                for (int64_t k = first + num; k < nz; k++) line[k] = everywhere;
                if (num == 0) continue;
                const STORED *from = image + c * steps[0] + dx * steps[1] + dy * steps[2] + dz;
                if (flips[2])
                    for (int64_t k = 0; k < num; k++) to[k] = (float)from[num - 1 - k] * factor + shift;
                else
                    for (int64_t k = 0; k < num; k++) to[k] = (float)from[k] * factor + shift;
            }
            int64_t to = (i * ny + j) * nz, from = dx * label_steps[0] + dy * label_steps[1] + dz;
            if (num == 0) from = 0;
            if (label_bytes == 1)
                crop_label_uint8((const uint8_t *)label + from, first, num, nz, flips[2] != 0,
                                 (uint8_t *)out_label + to);
            else
                crop_label_uint16((const uint16_t *)label + from, first, num, nz, flips[2] != 0,
                                  (uint16_t *)out_label + to);
        }
    }
    return DONE;
}

#undef STORED
#undef STORED_NAME
