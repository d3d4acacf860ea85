// SPDX-License-Identifier: MIT OR Apache-2.0
// Kernels of the API tests. `cargo xtask ptx` makes the PTX beside it.

#define KERNEL extern "C" __attribute__((global)) void

struct alignas(64) TensorMap {
    unsigned long long words[16];
};

/* The grid-stride index without the toolkit's headers. */
static __attribute__((device)) unsigned thread_index() {
    unsigned block, size, thread;
    asm("mov.u32 %0, %%ctaid.x;" : "=r"(block));
    asm("mov.u32 %0, %%ntid.x;" : "=r"(size));
    asm("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return block * size + thread;
}

__attribute__((device)) unsigned steps = 7;

/* out[i] = value */
KERNEL fill(unsigned* out, unsigned value, unsigned n) {
    unsigned i = thread_index();
    if (i < n) out[i] = value;
}

/* One argument of each type, each written where the host can see it. */
KERNEL arguments(unsigned long long* out, unsigned a, int b, float c, unsigned long long d) {
    if (thread_index() != 0) return;
    out[0] = a;
    out[1] = (unsigned long long)(long long)b;
    out[2] = (unsigned long long)__builtin_bit_cast(unsigned, c);
    out[3] = d;
}

/* A tensor map by value, copied out. */
KERNEL map_words(unsigned long long* out, const TensorMap map) {
    unsigned i = thread_index();
    if (i < 16) out[i] = map.words[i];
}

/* Writes where nothing is. */
KERNEL stray(unsigned long long address) {
    *(volatile unsigned*)address = 1;
}

/* out[i] = 3 out[i] + value: what comes out tells how often and in which order it ran. */
KERNEL mix(unsigned* out, unsigned value, unsigned n) {
    unsigned i = thread_index();
    if (i < n) out[i] = 3 * out[i] + value;
}
