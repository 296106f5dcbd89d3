/* Functions of numbers that loops over intensities share: logarithm, power of two, noise. */
#ifndef VOXELOCITY_NUMBERS_H
#define VOXELOCITY_NUMBERS_H

#include "../../core/loops.h"
#ifdef __AVX2__
#include <immintrin.h>
#endif

enum { BLOCKS = 256, CHUNK = 4 * BLOCKS, ROUNDS = 7, FRACTION_BITS = 17 };
/* Multipliers and steps of the keys of Philox. */
#define FIRST 0xD2511F53u
#define SECOND 0xCD9E8D57u
#define KEY_0 0x9E3779B9u
#define KEY_1 0xBB67AE85u

/* Minimax-like polynomials (Chebyshev fits of ours) for log2(1 + t) / t on 1 + t in [sqrt(1/2), sqrt(2)], off by at
 * most 5e-8, and 2**t on [-1/2, 1/2], off by 2e-9. They vectorize, while calls of the C library's powf do not. */
INLINE float log2_of(float value) {
    int32_t bits;
    memcpy(&bits, &value, 4);
    bits -= 0x3F3504F3; /* those of sqrt(1/2): anything above goes into the exponent */
    int32_t exponent = bits >> 23, of_mantissa = (bits & 0x7FFFFF) + 0x3F3504F3;
    float mantissa;
    memcpy(&mantissa, &of_mantissa, 4);
    float t = mantissa - 1, total = 0.12614846229553223f;
    total = total * t - 0.20742103457450867f;
    total = total * t + 0.21566985547542572f;
    total = total * t - 0.23892034590244293f;
    total = total * t + 0.2879183292388916f;
    total = total * t - 0.36070483922958374f;
    total = total * t + 0.48091059923171997f;
    total = total * t - 0.7213473320007324f;
    total = total * t + 1.4426950216293335f;
    return (float)exponent + total * t;
}

/* Of a number between -126 and 127. */
INLINE float exp2_of(float value) {
    /* A sum of this size has no fraction: its last bits are the nearest whole number, without a call or a branch. */
    float rounded = value + 0x1.8p23f, t = value - (rounded - 0x1.8p23f), total = 0.00015469732170458883f;
    int32_t whole;
    memcpy(&whole, &rounded, 4);
    total = total * t + 0.0013400432653725147f;
    total = total * t + 0.00961802527308464f;
    total = total * t + 0.05550327152013779f;
    total = total * t + 0.24022650718688965f;
    total = total * t + 0.6931471824645996f;
    total = total * t + 1.0f;
    uint32_t bits = ((uint32_t)whole + 127) << 23;
    float power;
    memcpy(&power, &bits, 4);
    return total * power;
}

/* Philox-4x32 as in `noise`, for the chunk whose first call is `block`: the words of its numbers. */
#ifdef __AVX2__
/* Compilers do not find that each word can stay in a lane of 64 bits, where it is multiplied: 2.2 times as fast. */
INLINE void draw_words(uint32_t *restrict words, uint32_t block, uint64_t seed, uint32_t number) {
    const __m256i first = _mm256_set1_epi64x(FIRST), second = _mm256_set1_epi64x(SECOND);
    for (uint32_t b = 0; b < BLOCKS; b += 8) {
        __m256i kept[2][4]; /* of blocks b, b + 2, b + 4, b + 6, and of those after each */
        for (uint32_t odd = 0; odd < 2; odd++) {
            uint32_t at = block + b + odd, k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
            __m256i w0 = _mm256_setr_epi64x(at, at + 2, at + 4, at + 6), w1 = _mm256_set1_epi64x(number);
            __m256i w2 = _mm256_setzero_si256(), w3 = w2;
            for (int r = 0; r < ROUNDS; r++, k0 += KEY_0, k1 += KEY_1) {
                __m256i low = _mm256_mul_epu32(first, w0), high = _mm256_mul_epu32(second, w2);
                w0 = _mm256_xor_si256(_mm256_srli_epi64(high, 32), _mm256_xor_si256(w1, _mm256_set1_epi64x(k0)));
                w2 = _mm256_xor_si256(_mm256_srli_epi64(low, 32), _mm256_xor_si256(w3, _mm256_set1_epi64x(k1)));
                w1 = high, w3 = low;
            }
            kept[odd][0] = w0, kept[odd][1] = w1, kept[odd][2] = w2, kept[odd][3] = w3;
        }
        for (uint32_t n = 0; n < 4; n++) {
            __m256i odd = _mm256_slli_epi64(kept[1][n], 32), both = _mm256_blend_epi32(kept[0][n], odd, 0xAA);
            _mm256_storeu_si256((__m256i *)(words + n * BLOCKS + b), both);
        }
    }
}
#else
INLINE void draw_words(uint32_t *restrict words, uint32_t block, uint64_t seed, uint32_t number) {
    for (uint32_t b = 0; b < BLOCKS; b++) {
        uint32_t w0 = block + b, w1 = number, w2 = 0, w3 = 0, k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
        for (int r = 0; r < ROUNDS; r++, k0 += KEY_0, k1 += KEY_1) {
            uint64_t low = (uint64_t)FIRST * w0, high = (uint64_t)SECOND * w2;
            w0 = (uint32_t)(high >> 32) ^ w1 ^ k0, w1 = (uint32_t)high;
            w2 = (uint32_t)(low >> 32) ^ w3 ^ k1, w3 = (uint32_t)low;
        }
        words[b] = w0, words[BLOCKS + b] = w1, words[2 * BLOCKS + b] = w2, words[3 * BLOCKS + b] = w3;
    }
}
#endif

/* `noise.normal_of` of the words of a chunk. The ends of their pieces are loaded one by one, both at once, as only the
 * rest can use wide registers; their own loads of scattered numbers are slow on many processors. */
INLINE void make_normal(const uint32_t *restrict words, const int32_t *restrict pieces, float *restrict numbers) {
    int32_t piece[CHUNK], ends[2 * CHUNK];
    float fraction[CHUNK];
    for (int t = 0; t < CHUNK; t++) {
        float beyond = (float)(int32_t)((words[t] & 0x7FFFFFFFu) | 1u);
        uint32_t bits;
        memcpy(&bits, &beyond, 4);
        piece[t] = (int32_t)((bits >> FRACTION_BITS) - (127u << (23 - FRACTION_BITS)));
        fraction[t] = (float)(int32_t)(bits & ((1u << FRACTION_BITS) - 1)) * (1.0f / (1 << FRACTION_BITS));
    }
    for (int t = 0; t < CHUNK; t++) memcpy(ends + 2 * t, pieces + piece[t], 8);
    for (int t = 0; t < CHUNK; t++) {
        int32_t start = ends[2 * t], sign = (int32_t)words[t] >> 31;
        int32_t steps = start + (int32_t)((float)(ends[2 * t + 1] - start) * fraction[t]);
        numbers[t] = 0x1p-28f * (float)((steps ^ sign) - sign);
    }
}

#endif
