/* The loop of `resize.c` for one type of stored numbers, STORED, named STORED_NAME. */

/* Fills a result whose voxels are weighted sums along each axis, plane by plane: along x, then y, then along the row
 * itself; the arguments are explained in `native_loops.resize`. */
int TYPED_LOOP(resize)(const STORED *source, const int64_t *sizes, const int64_t *index_x, const float *weight_x,
                       const int64_t *index_y, const float *weight_y, const int64_t *index_z, const float *weight_z,
                       const float *scale, float *out) {
    const int64_t nc = sizes[0], *sides = sizes + 1, *from = sizes + 4, *num = sizes + 9, *taps = sizes + 12;
    const int64_t *to = sizes + 15, ny = sides[1], nz = sides[2];
    if (!are_inside(index_x, num[0] * taps[0], sides[0]) || !are_inside(index_y, num[1] * taps[1], sides[1]) ||
        !are_inside(index_z, num[2] * taps[2], sides[2]))
        return OUT_OF_RANGE;
    float *memory = new_floats(ny * nz + nz + num[2]);
    if (!memory) return NO_MEMORY;
    float *plane = memory, *restrict row = plane + ny * nz, *restrict ended = row + nz;
    for (int64_t c = 0; c < nc; c++)
        for (int64_t i = 0; i < num[0]; i++) {
            for (int64_t t = 0; t < taps[0]; t++) {
                float weight = weight_x[i * taps[0] + t];
                if (t > 0 && weight == 0) continue;
                for (int64_t j = 0; j < ny; j++) {
                    const STORED *line = source + from[0] + c * from[1] + index_x[i * taps[0] + t] * from[2] + j * from[3];
                    float *restrict sums = plane + j * nz;
                    if (t == 0 && from[4] == 1)
                        for (int64_t k = 0; k < nz; k++) sums[k] = (float)line[k] * weight;
                    else if (from[4] == 1)
                        for (int64_t k = 0; k < nz; k++) sums[k] += (float)line[k] * weight;
                    else
                        for (int64_t k = 0; k < nz; k++)
                            sums[k] = (t == 0 ? 0 : sums[k]) + (float)line[k * from[4]] * weight;
                }
            }
            for (int64_t j = 0; j < num[1]; j++) {
                for (int64_t t = 0; t < taps[1]; t++) {
                    const float *restrict line = plane + index_y[j * taps[1] + t] * nz;
                    float weight = weight_y[j * taps[1] + t];
                    if (t == 0)
                        for (int64_t k = 0; k < nz; k++) row[k] = line[k] * weight;
                    else if (weight != 0)
                        for (int64_t k = 0; k < nz; k++) row[k] += line[k] * weight;
                }
                memset(ended, 0, (size_t)num[2] * sizeof(float));
                for (int64_t t = 0; t < taps[2]; t++) {
                    const int64_t *restrict index = index_z + t * num[2];
                    const float *restrict weight = weight_z + t * num[2];
                    for (int64_t k = 0; k < num[2]; k++) ended[k] += row[index[k]] * weight[k];
                }
                float *line = out + to[0] + c * to[1] + i * to[2] + j * to[3];
                for (int64_t k = 0; k < num[2]; k++) line[k * to[4]] = ended[k] * scale[2 * c] + scale[2 * c + 1];
            }
        }
    free(memory);
    return DONE;
}

#undef STORED
#undef STORED_NAME
