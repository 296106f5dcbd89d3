/* Linear interpolation at new places that form a grid with the array's axes. */
#include "loops.h"

#define STORED uint8_t
#define STORED_NAME uint8
#include "interpolation_stored.h"
#define STORED int16_t
#define STORED_NAME int16
#include "interpolation_stored.h"
#define STORED uint16_t
#define STORED_NAME uint16
#include "interpolation_stored.h"
#define STORED int32_t
#define STORED_NAME int32
#include "interpolation_stored.h"
#define STORED float
#define STORED_NAME float32
#include "interpolation_stored.h"
#define STORED double
#define STORED_NAME float64
#include "interpolation_stored.h"
