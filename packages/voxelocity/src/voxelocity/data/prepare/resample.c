/* Labels on an axis-aligned grid: the class with the largest linear share, the lower one of equals. */
#include "../../core/loops.h"

#define STORED uint8_t
#define STORED_NAME uint8
#include "resample_stored.h"
#define STORED uint16_t
#define STORED_NAME uint16
#include "resample_stored.h"
