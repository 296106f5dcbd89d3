/* Labels as nnU-Net resamples them: each label's linear share is summed as SciPy sums it, and the largest wins. */
#include "../../core/loops.h"

INLINE double share_of(int16_t label, const int16_t *labels, const double *shares) {
    double total = 0;
    for (int a = 0; a < 8; a++) total += labels[a] == label ? shares[a] : 0;
    return total;
}

/* Of equal shares the one of the nearest voxel, if it is among them, else the smallest label. */
INLINE int16_t winner(const int16_t *labels, const double *shares, int16_t near) {
    int16_t best = labels[0];
    double most = -1;
    for (int a = 0; a < 8; a++) {
        double share = share_of(labels[a], labels, shares);
        if (share > most || (share == most && labels[a] < best)) {
            best = labels[a];
            most = share;
        }
    }
    return share_of(near, labels, shares) == most ? near : best;
}

/* Fills `out` (x, y, z) from `source`; both are in C order, and `sizes` has the shapes of both. Of each axis of `out`,
 * `at_` has the voxels of the source below, above and nearest, one row each, and `of_` the weights of the first two. */
int LOOP(resize_labels)(const int16_t *source, const int64_t *sizes, const int64_t *at_x, const double *of_x,
                        const int64_t *at_y, const double *of_y, const int64_t *at_z, const double *of_z, int16_t *out) {
    const int64_t *shape = sizes, nx = sizes[3], ny = sizes[4], nz = sizes[5];
    if (!are_inside(at_x, 3 * nx, shape[0]) || !are_inside(at_y, 3 * ny, shape[1]) ||
        !are_inside(at_z, 3 * nz, shape[2]))
        return OUT_OF_RANGE;
    const int64_t plane = shape[1] * shape[2];
    for (int64_t i = 0; i < nx; i++) {
        const int16_t *low_x = source + at_x[i] * plane, *high_x = source + at_x[nx + i] * plane;
        const int16_t *near_x = source + at_x[2 * nx + i] * plane;
        for (int64_t j = 0; j < ny; j++) {
            const int64_t low_y = at_y[j] * shape[2], high_y = at_y[ny + j] * shape[2];
            const int16_t *r00 = low_x + low_y, *r01 = low_x + high_y, *r10 = high_x + low_y, *r11 = high_x + high_y;
            const int16_t *near = near_x + at_y[2 * ny + j] * shape[2];
            int16_t *row = out + (i * ny + j) * nz;
            for (int64_t k = 0; k < nz; k++) {
                const int64_t low = at_z[k], high = at_z[nz + k];
                const int16_t labels[8] = {r00[low], r00[high], r01[low], r01[high],
                                           r10[low], r10[high], r11[low], r11[high]};
                int differs = 0;
                for (int a = 1; a < 8; a++) differs |= labels[0] ^ labels[a];
                row[k] = labels[0];
                if (!differs) continue;
                double shares[8];
                for (int a = 0; a < 8; a++)
                    shares[a] = of_x[(a >> 2) * nx + i] * of_y[(a >> 1 & 1) * ny + j] * of_z[(a & 1) * nz + k];
                row[k] = winner(labels, shares, near[at_z[2 * nz + k]]);
            }
        }
    }
    return DONE;
}
