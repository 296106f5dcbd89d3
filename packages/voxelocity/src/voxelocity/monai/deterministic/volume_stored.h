/* The part of `volume.c` that depends on the type of stored voxels, STORED, named STORED_NAME. */

/* Weighted means of eight voxels, summed in float64 and rounded once. Source (x, y, z) and result in C order, their
 * shapes in `sizes`; for each axis the voxels below and above each sample, and the weights of both. */
int TYPED_LOOP(sample_linear)(const STORED *source, const int64_t *sizes, const int64_t *low_x, const int64_t *high_x,
                              const double *weight_low_x, const double *weight_high_x, const int64_t *low_y,
                              const int64_t *high_y, const double *weight_low_y, const double *weight_high_y,
                              const int64_t *low_z, const int64_t *high_z, const double *weight_low_z,
                              const double *weight_high_z, float *out) {
    const int64_t *sides = sizes, nx = sizes[3], ny = sizes[4], nz = sizes[5];
    if (!are_inside(low_x, nx, sides[0]) || !are_inside(high_x, nx, sides[0]) || !are_inside(low_y, ny, sides[1]) ||
        !are_inside(high_y, ny, sides[1]) || !are_inside(low_z, nz, sides[2]) || !are_inside(high_z, nz, sides[2]))
        return OUT_OF_RANGE;
    double *restrict line = malloc((size_t)sides[2] * sizeof(double) + 1);
    if (!line) return NO_MEMORY;
    for (int64_t i = 0; i < nx; i++)
        for (int64_t j = 0; j < ny; j++) {
            const STORED *low = source + low_x[i] * sides[1] * sides[2];
            const STORED *high = source + high_x[i] * sides[1] * sides[2];
            const STORED *r00 = low + low_y[j] * sides[2], *r01 = low + high_y[j] * sides[2];
            const STORED *r10 = high + low_y[j] * sides[2], *r11 = high + high_y[j] * sides[2];
            double w00 = weight_low_x[i] * weight_low_y[j], w01 = weight_low_x[i] * weight_high_y[j];
            double w10 = weight_high_x[i] * weight_low_y[j], w11 = weight_high_x[i] * weight_high_y[j];
            for (int64_t k = 0; k < sides[2]; k++)
                line[k] = w00 * (double)r00[k] + w01 * (double)r01[k] + w10 * (double)r10[k] + w11 * (double)r11[k];
            float *restrict row = out + (i * ny + j) * nz;
            for (int64_t k = 0; k < nz; k++)
                row[k] = (float)(weight_low_z[k] * line[low_z[k]] + weight_high_z[k] * line[high_z[k]]);
        }
    free(line);
    return DONE;
}

/* The voxels at these indices, and 0 where one of them is negative. */
int TYPED_LOOP(sample_nearest)(const STORED *source, const int64_t *sizes, const int64_t *index_x,
                               const int64_t *index_y, const int64_t *index_z, float *out) {
    const int64_t *sides = sizes, *num = sizes + 3, *indices[3] = {index_x, index_y, index_z};
    for (int axis = 0; axis < 3; axis++)
        for (int64_t k = 0; k < num[axis]; k++)
            if (indices[axis][k] >= sides[axis]) return OUT_OF_RANGE;
    for (int64_t i = 0; i < num[0]; i++)
        for (int64_t j = 0; j < num[1]; j++) {
            int is_beyond = index_x[i] < 0 || index_y[j] < 0;
            const STORED *line = is_beyond ? source : source + (index_x[i] * sides[1] + index_y[j]) * sides[2];
            float *restrict row = out + (i * num[1] + j) * num[2];
            for (int64_t k = 0; k < num[2]; k++) row[k] = is_beyond || index_z[k] < 0 ? 0 : (float)line[index_z[k]];
        }
    return DONE;
}

#undef STORED
#undef STORED_NAME
