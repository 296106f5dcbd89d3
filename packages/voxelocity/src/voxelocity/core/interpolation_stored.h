/* The loop of `interpolation.c` for one type of stored numbers, STORED, named STORED_NAME. */

/* Fills `out` (x, y, z) from `source`, whose rows along z are dense; the arguments are explained in
 * `native.interpolate`. */
int TYPED_LOOP(interpolate)(const STORED *source, const int64_t *sizes, const int64_t *below_x, const int64_t *above_x,
                            const float *weight_x, const int64_t *below_y, const int64_t *above_y,
                            const float *weight_y, const int64_t *below_z, const int64_t *above_z,
                            const float *weight_z, float *out) {
    const int64_t *shape = sizes, *steps = sizes + 3, nx = sizes[5], ny = sizes[6], nz = sizes[7];
    if (!are_inside(below_x, nx, shape[0]) || !are_inside(above_x, nx, shape[0]) ||
        !are_inside(below_y, ny, shape[1]) || !are_inside(above_y, ny, shape[1]) ||
        !are_inside(below_z, nz, shape[2]) || !are_inside(above_z, nz, shape[2]))
        return OUT_OF_RANGE;
    float *restrict line = malloc(shape[2] * sizeof(float) + 1);
    if (!line) return NO_MEMORY;
    for (int64_t i = 0; i < nx; i++) {
        for (int64_t j = 0; j < ny; j++) {
            const STORED *low = source + below_x[i] * steps[0], *high = source + above_x[i] * steps[0];
            const STORED *r00 = low + below_y[j] * steps[1], *r01 = low + above_y[j] * steps[1];
            const STORED *r10 = high + below_y[j] * steps[1], *r11 = high + above_y[j] * steps[1];
            float wx = weight_x[i], wy = weight_y[j];
            for (int64_t k = 0; k < shape[2]; k++)
                line[k] = mix(mix((float)r00[k], (float)r01[k], wy), mix((float)r10[k], (float)r11[k], wy), wx);
            float *restrict row = out + (i * ny + j) * nz;
            for (int64_t k = 0; k < nz; k++) row[k] = mix(line[below_z[k]], line[above_z[k]], weight_z[k]);
        }
    }
    free(line);
    return DONE;
}

#undef STORED
#undef STORED_NAME
