/* Loops that take a patch from its volume, cropped or warped: one pass for label, decoding and brightness too.
 *
 * A warped patch is filled plane by plane: first the places of the plane's voxels, then its channels one after the
 * other, then its label. */
#include "../../core/loops.h"

typedef struct {
    float x, y, z;
} Place;

/* Of a row: its first voxel with a neighbor in the box, first and last (excluded) with all neighbors in it, and last
 * (excluded) with any. */
typedef struct {
    int64_t first, start, stop, last;
} Row;

typedef struct {
    const int64_t *shape; /* of the box */
    int64_t ny, nz;       /* of the plane */
    int64_t step_x;       /* in the box, to the neighbors behind along x; 0 where they have no weight */
    float *points;        /* (3, ny, nz) in the box */
    float *weights;       /* (3, ny, nz) of the neighbors behind, where all eight lie inside */
    uint32_t *place;      /* (ny, nz) of the first neighbor, counted from the box's first voxel; likewise */
    Row *rows;            /* (ny,) */
    float *shifts, *line; /* (3, gy, gz) and (gz,) of an elastic deformation */
    uint32_t *nearest;    /* (nz,) */
    void *corners;        /* (4, 2 * nz) of the stored type: the neighbors of a row, two along z side by side */
    uint8_t *is_mixed;    /* (nz,) */
} Plane;

/* Allocates what a plane needs, as one block; NULL if there is not enough memory. */
static void *open_plane(Plane *plane, const int64_t *grid) {
    size_t ny = (size_t)plane->ny, nz = (size_t)plane->nz, size = ny * nz, knots = (size_t)(grid[1] * grid[2]);
    size_t sizes[] = {ny * sizeof(Row), 12 * size, 12 * size, 4 * size,
                      12 * knots, 4 * (size_t)grid[2], 4 * nz, 8 * nz * sizeof(double), nz};
    enum { NUM_PARTS = sizeof(sizes) / sizeof(sizes[0]) };
    void *parts[NUM_PARTS];
    size_t total = 1;
    for (int p = 0; p < NUM_PARTS; p++) total += (sizes[p] + 63) / 64 * 64;
    char *memory = malloc(total), *next = memory;
    if (!memory) return NULL;
    for (int p = 0; p < NUM_PARTS; next += (sizes[p] + 63) / 64 * 64, p++) parts[p] = next;
    plane->rows = parts[0], plane->points = parts[1], plane->weights = parts[2], plane->place = parts[3];
    plane->shifts = parts[4], plane->line = parts[5], plane->nearest = parts[6], plane->corners = parts[7];
    plane->is_mixed = parts[8];
    return memory;
}

INLINE Place place_of(const Plane *plane, int64_t j, int64_t k) {
    const float *point = plane->points + j * plane->nz + k;
    int64_t size = plane->ny * plane->nz;
    return (Place){point[0], point[size], point[2 * size]};
}

/* Whether any of the eight neighbors lies in the box. False for NaN. */
INLINE int sees(Place at, const int64_t *shape) {
    return at.x > -1 && at.y > -1 && at.z > -1 && at.x < (float)shape[0] && at.y < (float)shape[1] &&
           at.z < (float)shape[2];
}

/* Whether all eight neighbors lie in the box. */
INLINE int is_inside(Place at, Place last) {
    return (at.x >= 0) & (at.y >= 0) & (at.z >= 0) & (at.x <= last.x) & (at.y <= last.y) & (at.z <= last.z);
}

/* Where the voxels of plane `i` lie in the box. */
INLINE void find_points(int64_t i, const double *origin, const double *step, Plane *plane) {
    for (int axis = 0; axis < 3; axis++) {
        float along_z = (float)step[3 * axis + 2];
        for (int64_t j = 0; j < plane->ny; j++) {
            float first = (float)(origin[axis] + (double)i * step[3 * axis] + (double)j * step[3 * axis + 1]);
            float *row = plane->points + (axis * plane->ny + j) * plane->nz;
            for (int32_t k = 0; k < (int32_t)plane->nz; k++) row[k] = first + (float)k * along_z;
        }
    }
}

/* The control points' shifts at one x: (3, gx, gy, gz) to (3, gy, gz). */
INLINE void sum_planes(const float *control, const int64_t *grid, const float *weights, float *shifts) {
    int64_t size = grid[1] * grid[2];
    memset(shifts, 0, 3 * size * sizeof(float));
    for (int64_t g = 0; g < grid[0]; g++) {
        if (weights[g] == 0) continue;
        for (int axis = 0; axis < 3; axis++)
            for (int64_t h = 0; h < size; h++)
                shifts[axis * size + h] += weights[g] * control[(axis * grid[0] + g) * size + h];
    }
}

/* Adds the shifts at one x to the places of its voxels. */
INLINE void shift_points(const int64_t *grid, const float *weights_y, const int32_t *first_z, const float *weights_z,
                         Plane *plane) {
    float *line = plane->line;
    for (int axis = 0; axis < 3; axis++) {
        for (int64_t j = 0; j < plane->ny; j++) {
            memset(line, 0, grid[2] * sizeof(float));
            for (int64_t h = 0; h < grid[1]; h++) {
                float weight = weights_y[j * grid[1] + h];
                if (weight == 0) continue;
                const float *shifts = plane->shifts + (axis * grid[1] + h) * grid[2];
                for (int64_t q = 0; q < grid[2]; q++) line[q] += weight * shifts[q];
            }
            float *row = plane->points + (axis * plane->ny + j) * plane->nz;
            for (int64_t k = 0; k < plane->nz; k++) {
                const float *four = line + first_z[k], *weight = weights_z + 4 * k;
                row[k] += weight[0] * four[0] + weight[1] * four[1];
                row[k] += weight[2] * four[2] + weight[3] * four[3];
            }
        }
    }
}

/* Whether all voxels of the plane, which is not elastic, lie in one plane of the box: as where axes y and z alone are
 * turned. */
INLINE int is_level(const Plane *plane, const double *step) {
    float x = plane->points[0];
    return step[1] == 0 && step[2] == 0 && x >= 0 && x < (float)plane->shape[0] && x == floorf(x);
}

INLINE Row row_of(const Plane *plane, int64_t j) {
    const int64_t *shape = plane->shape, size = plane->nz;
    /* Places are float32: this far inside the border, a rounded one never has a neighbor beyond it. */
    double x = (double)shape[0], y = (double)shape[1], z = (double)shape[2];
    Place end = {(float)(x - 1.0 - 1e-3 - 1e-6 * x), (float)(y - 1.0 - 1e-3 - 1e-6 * y), (float)(z - 1.0 - 1e-3 - 1e-6 * z)};
    if (plane->step_x == 0) end.x = (float)(x - 1.0);
    int32_t num = 0;
    for (int64_t k = 0; k < size; k++) num += is_inside(place_of(plane, j, k), end);
    if (num == size) return (Row){0, 0, size, size};
    int64_t first = 0, last = size;
    while (first < last && !sees(place_of(plane, j, first), shape)) first++;
    while (first < last && !sees(place_of(plane, j, last - 1), shape)) last--;
    int64_t start = first, stop = last;
    while (start < stop && !is_inside(place_of(plane, j, start), end)) start++;
    while (start < stop && !is_inside(place_of(plane, j, stop - 1), end)) stop--;
    /* An elastic row leaves the box and comes back: none of it counts as inside. */
    return num == stop - start ? (Row){first, start, stop, last} : (Row){first, last, last, last};
}

/* For each voxel, the first of its eight neighbors and the weights of those behind it along each axis. */
INLINE void find_neighbors(Plane *plane) {
    int64_t ny = plane->ny, nz = plane->nz, size = ny * nz;
    int32_t step_x = (int32_t)(plane->shape[1] * plane->shape[2]), step_y = (int32_t)plane->shape[2];
    for (int64_t j = 0; j < ny; j++) {
        const float *restrict px = plane->points + j * nz, *restrict py = px + size, *restrict pz = py + size;
        float *restrict wx = plane->weights + j * nz, *restrict wy = wx + size, *restrict wz = wy + size;
        uint32_t *restrict place = plane->place + j * nz;
        Row row = plane->rows[j] = row_of(plane, j);
        for (int64_t k = row.start; k < row.stop; k++) {
            int32_t x = (int32_t)px[k], y = (int32_t)py[k], z = (int32_t)pz[k];
            wx[k] = px[k] - (float)x, wy[k] = py[k] - (float)y, wz[k] = pz[k] - (float)z;
            place[k] = (uint32_t)(x * step_x + y * step_y + z);
        }
    }
}

#define STORED uint8_t
#define STORED_NAME uint8
#include "warp_label_stored.h"
#define STORED uint16_t
#define STORED_NAME uint16
#include "warp_label_stored.h"
#define STORED int16_t
#define STORED_NAME int16
#include "warp_stored.h"
#define STORED uint8_t
#define STORED_NAME uint8
#include "warp_stored.h"
#define STORED float
#define STORED_NAME float32
#include "warp_stored.h"

/* Replaces each class by its entry in a table of 256. */
int LOOP(swap_classes)(uint8_t *label, int64_t num, const uint8_t *swapped) {
    for (int64_t k = 0; k < num; k++) label[k] = swapped[label[k]];
    return DONE;
}
