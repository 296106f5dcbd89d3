/* The loop that resamples an array axis by axis. */
#include "../../../core/loops.h"

#define STORED uint8_t
#define STORED_NAME uint8
#include "resize_stored.h"
#define STORED int16_t
#define STORED_NAME int16
#include "resize_stored.h"
#define STORED float
#define STORED_NAME float32
#include "resize_stored.h"
