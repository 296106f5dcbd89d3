/* The entropy-coded part of lossless JPEG (ITU-T T.81, annex H) with one component, as DICOM has it. */
#include "../../../core/loops.h"

typedef struct {
    const uint8_t *bytes;
    int64_t place, num_bytes;
    uint64_t bits;
    int num_bits;
    int64_t num_made; /* bytes of zeros behind the end, or before a marker */
} Bits;

/* At least 32 bits ahead. */
INLINE void fill(Bits *in) {
    while (in->num_bits <= 48) {
        const int64_t before = in->place;
        uint8_t byte = 0;
        if (in->place < in->num_bytes) {
            byte = in->bytes[in->place];
            if (byte != 0xFF)
                in->place++;
            else if (in->place + 1 < in->num_bytes && in->bytes[in->place + 1] == 0)
                in->place += 2;
            else
                byte = 0;
        }
        in->num_made += in->place == before;
        in->bits = in->bits << 8 | byte;
        in->num_bits += 8;
    }
}

INLINE int64_t take(Bits *in, int num) {
    in->num_bits -= num;
    return (int64_t)(in->bits >> in->num_bits & ((1ull << num) - 1));
}

/* Behind the next restart marker, if the stream is at one. */
INLINE int skip_restart(Bits *in) {
    if (in->place + 1 >= in->num_bytes || in->bytes[in->place] != 0xFF) return 0;
    uint8_t marker = in->bytes[in->place + 1];
    if (marker < 0xD0 || marker > 0xD7) return 0;
    in->place += 2;
    in->bits = 0;
    in->num_bits = 0;
    in->num_made = 0;
    return 1;
}

INLINE int64_t predict(int64_t kind, int64_t left, int64_t above, int64_t corner) {
    switch (kind) {
    case 1: return left;
    case 2: return above;
    case 3: return corner;
    case 4: return left + above - corner;
    case 5: return left + ((above - corner) >> 1);
    case 6: return above + ((left - corner) >> 1);
    default: return (left + above) >> 1;
    }
}

/* Fills `out` (rows, columns). `numbers`: bytes of the stream, rows, columns, predictor, precision, point transform,
 * rows between restarts (0 for none). `codes` has for each 16 bits the length of the code that they begin with, times
 * 256, and its category. */
int LOOP(decode_lossless)(const uint8_t *stream, const int64_t *numbers, const uint16_t *codes, uint16_t *out) {
    const int64_t rows = numbers[1], columns = numbers[2], kind = numbers[3], point = numbers[5], every = numbers[6];
    const int64_t first = (int64_t)1 << (numbers[4] - point - 1);
    Bits in = {stream, 0, numbers[0], 0, 0, 0};
    int is_begin = 1;
    for (int64_t i = 0; i < rows; i++) {
        if (every && i && i % every == 0) {
            if (!skip_restart(&in)) return OUT_OF_RANGE;
            is_begin = 1;
        }
        uint16_t *row = out + i * columns, *before = row - columns;
        for (int64_t j = 0; j < columns; j++) {
            fill(&in);
            const uint16_t code = codes[in.bits >> (in.num_bits - 16) & 0xFFFF];
            const int length = code >> 8, category = code & 0xFF;
            if (!length) return OUT_OF_RANGE;
            take(&in, length);
            int64_t slope = 0;
            if (category == 16) {
                slope = 32768;
            } else if (category) {
                slope = take(&in, category);
                if (slope < (int64_t)1 << (category - 1)) slope += 1 - ((int64_t)1 << category);
            }
            int64_t guess;
            if (is_begin)
                guess = j ? row[j - 1] : first;
            else if (!j)
                guess = before[0];
            else
                guess = predict(kind, row[j - 1], before[j], before[j - 1]);
            row[j] = (uint16_t)(guess + slope);
        }
        is_begin = 0;
        /* The zeros are the last bits that are left. */
        if (8 * in.num_made > in.num_bits) return OUT_OF_RANGE;
    }
    for (int64_t n = 0; point && n < rows * columns; n++) out[n] = (uint16_t)(out[n] << point);
    return DONE;
}
