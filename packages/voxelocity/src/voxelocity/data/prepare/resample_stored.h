/* The loop of `resample.c` for one type of labels: included once for each, with STORED and STORED_NAME defined. */

/* Fills `out` (x, y, z) from `source`, whose rows along z are dense; arguments are as in `interpolate`. */
int TYPED_LOOP(resample_label)(const STORED *source, const int64_t *sizes, const int64_t *below_x,
                               const int64_t *above_x, const float *weight_x, const int64_t *below_y,
                               const int64_t *above_y, const float *weight_y, const int64_t *below_z,
                               const int64_t *above_z, const float *weight_z, STORED *out) {
    const int64_t *shape = sizes, *steps = sizes + 3, nx = sizes[5], ny = sizes[6], nz = sizes[7];
    if (!are_inside(below_x, nx, shape[0]) || !are_inside(above_x, nx, shape[0]) ||
        !are_inside(below_y, ny, shape[1]) || !are_inside(above_y, ny, shape[1]) ||
        !are_inside(below_z, nz, shape[2]) || !are_inside(above_z, nz, shape[2]))
        return OUT_OF_RANGE;
    for (int64_t i = 0; i < nx; i++) {
        for (int64_t j = 0; j < ny; j++) {
            const STORED *low_x = source + below_x[i] * steps[0], *high_x = source + above_x[i] * steps[0];
            const STORED *r00 = low_x + below_y[j] * steps[1], *r01 = low_x + above_y[j] * steps[1];
            const STORED *r10 = high_x + below_y[j] * steps[1], *r11 = high_x + above_y[j] * steps[1];
            STORED *row = out + (i * ny + j) * nz;
            for (int64_t k = 0; k < nz; k++) {
                int64_t low = below_z[k], high = above_z[k];
                uint16_t labels[8] = {r00[low], r00[high], r01[low], r01[high],
                                      r10[low], r10[high], r11[low], r11[high]};
                uint16_t differs = 0;
                for (int a = 1; a < 8; a++) differs |= labels[0] ^ labels[a];
                row[k] = (STORED)labels[0];
                if (!differs) continue;
                float shares[8];
                fill_shares(weight_x[i], weight_y[j], weight_z[k], shares);
                row[k] = (STORED)largest_share(labels, shares);
            }
        }
    }
    return DONE;
}

#undef STORED
#undef STORED_NAME
