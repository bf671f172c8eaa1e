/* Single elements of the 16-bit formats, in host memory. Inline and without branches that a compiler could not turn
   into selects, so that loops over them vectorise. To bf16 and f16 they round to nearest even; a NaN stays a NaN. */
#ifndef PL_TENSOR_HALF_H
#define PL_TENSOR_HALF_H

#include <stdint.h>
#include <string.h>

static inline float pl_f32_from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t pl_f32_to_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float pl_bf16_to_f32(uint16_t bits)
{
    return pl_f32_from_bits((uint32_t)bits << 16);
}

static inline uint16_t pl_f32_to_bf16(float value)
{
    uint32_t bits = pl_f32_to_bits(value);
    uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
    uint32_t nan = bits >> 16 | 0x40; /* its payload may lie in the bits that are cut off */
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

/* A number as its bf16 and the 16 bits that this lacks, so that both together are as exact as f32 and the bf16 can be
   used by itself (NVIDIA Apex's optimizers keep parameters so). One number in 131072 is changed by its last bit: where
   it lies half way between two bf16, *rest cannot tell which of them was the even one if that is the lower. */
static inline uint16_t pl_f32_split(float value, int16_t *rest)
{
    uint16_t half = pl_f32_to_bf16(value);
    uint32_t bits = pl_f32_to_bits(value);
    bits -= (bits & 0x1ffffu) == 0x8000u;
    *rest = (bits & 0x7fffffffu) > 0x7f800000u ? 0 : (int16_t)(bits & 0xffffu);
    return half;
}

static inline float pl_f32_join(uint16_t half, int16_t rest)
{
    return pl_f32_from_bits(((uint32_t)half << 16) + (uint32_t)(int32_t)rest);
}

static inline float pl_f16_to_f32(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, magnitude = (uint32_t)(half & 0x7fff) << 13;
    uint32_t normal = magnitude + (112u << 23);
    uint32_t special = magnitude + (224u << 23);                               /* infinity or NaN */
    uint32_t subnormal = pl_f32_to_bits((float)(int)(half & 1023) * 0x1p-24f); /* or zero */
    uint32_t bits = magnitude >= 31u << 23 ? special : magnitude < 1u << 23 ? subnormal : normal;
    return pl_f32_from_bits(sign | bits);
}

static inline uint16_t pl_f32_to_f16(float value)
{
    uint32_t bits = pl_f32_to_bits(value), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffffu;
    uint32_t normal = (magnitude + 0xfffu + (magnitude >> 13 & 1) - 0x38000000u) >> 13;
    /* Adding 0.5 lets the adder round a subnormal to steps of 2^-24. */
    uint32_t subnormal = pl_f32_to_bits(pl_f32_from_bits(magnitude) + 0.5f) - 0x3f000000u;
    uint32_t half = magnitude < 0x38800000u ? subnormal : normal;
    half = magnitude >= 0x477ff000u ? 0x7c00u : half; /* 65520 and above round to infinity */
    half = magnitude > 0x7f800000u ? 0x7e00u : half;
    return (uint16_t)(sign | half);
}

#endif
