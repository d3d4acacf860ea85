// SPDX-License-Identifier: MIT OR Apache-2.0
// The red zones' kernels: fill bands, check bands, change the resident table.
//
// The table of bands lives in device memory and is changed in place as bands come and go, so a scan uploads nothing:
// uploading 25,000 entries for each scan costs more than checking them. Its entries are the structs of table.rs; a slot
// whose `bytes` is 0 holds no band. An entry is 16 bytes, so that one read brings all of it.
//
// A warp takes a band. Its lanes read the band's aligned middle 16 bytes each, so that a band of 256 bytes is one
// coalesced read by half a warp, and 25,000 of them are 6 MB spread over all multiprocessors: what remains is the latency
// of two dependent reads, entry then band. A band begins where the caller's bytes end and need not be aligned, so up to
// 15 bytes at either end are read one by one, by a lane each and in the same breath as the middle. Nothing outside a band
// is read or written: its neighbours may be in use while a scan runs.
//
// Clean bands write nothing. A changed one is appended to `found` at a place drawn from `counter`, so the host reads four
// bytes when all is well, and no more records than there are violations otherwise.

#define __global__ __attribute__((global))
#define __device__ __attribute__((device))

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

static_assert(sizeof(u32) == 4 && sizeof(u64) == 8, "the host's structs rely on it");

struct alignas(16) Band {
    u64 address; // of the band's first byte
    u32 bytes;   // 0 for a free slot
    u8 base;     // the byte at offset 0
    u8 step;     // what each next byte is larger by, modulo 256; 0 for a single fill byte
    u8 unused[2];
};
static_assert(sizeof(Band) == 16, "table.rs counts on 16 bytes");

struct Found {
    u32 slot;
    u32 first; // offsets into the band
    u32 last;
    u32 count; // changed bytes
    u32 value; // the byte at `first`
};
static_assert(sizeof(Found) == 20, "table.rs counts on 20 bytes");

struct Update {
    Band band;
    u32 slot;
    u32 fill; // not 0: fill the band too
    u64 unused;
};
static_assert(sizeof(Update) == 32, "table.rs counts on 32 bytes");

// Told that it is global memory and how it is aligned, the compiler makes one access of 16 bytes.
#define __global_memory__ __attribute__((address_space(1)))
typedef u32 Vector __attribute__((ext_vector_type(4)));
typedef __global_memory__ u8 GlobalByte;
typedef __global_memory__ Vector GlobalVector;

static __device__ inline Band band_of(Vector entry) {
    Band band;
    band.address = (u64)entry[1] << 32 | entry[0];
    band.bytes = entry[2];
    band.base = (u8)entry[3];
    band.step = (u8)(entry[3] >> 8);
    band.unused[0] = band.unused[1] = 0;
    return band;
}

static const u32 WARP = 32;
static const u32 ALL_LANES = 0xffffffffu;
static const u32 NOWHERE = 0xffffffffu;

static __device__ inline u32 lane_of_thread() { return __nvvm_read_ptx_sreg_tid_x() % WARP; }

static __device__ inline u64 warp_of_thread() {
    u64 block = __nvvm_read_ptx_sreg_ctaid_x();
    return (block * __nvvm_read_ptx_sreg_ntid_x() + __nvvm_read_ptx_sreg_tid_x()) / WARP;
}

// In assembly, for clang takes the builtin only beside an installed toolkit.
static __device__ inline u32 from_lane_xor(u32 value, u32 mask) {
    u32 other;
    asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 31, %3;" : "=r"(other) : "r"(value), "r"(mask), "r"(ALL_LANES));
    return other;
}

static __device__ inline bool any_lane(bool is_so) {
    u32 any;
    asm volatile("{\n\t.reg .pred in, out;\n\tsetp.ne.u32 in, %1, 0;\n\tvote.sync.any.pred out, in, %2;\n\t"
                 "selp.u32 %0, 1, 0, out;\n\t}"
                 : "=r"(any)
                 : "r"((u32)is_so), "r"(ALL_LANES));
    return any != 0;
}

// The band's byte at an offset.
static __device__ inline u32 byte_at(const Band &band, u32 offset) {
    return (band.base + offset * band.step) & 0xff;
}

// Adds byte by byte, no carry from one byte into the next.
static __device__ inline u32 add_bytes(u32 a, u32 b) {
    return ((a & 0x7f7f7f7fu) + (b & 0x7f7f7f7fu)) ^ ((a ^ b) & 0x80808080u);
}

// The sixteen bytes from an offset on, lowest first as the device stores them.
static __device__ inline Vector vector_at(const Band &band, u32 offset) {
    u32 step = band.step;
    u32 rise = (step << 8) | ((2 * step & 0xff) << 16) | ((3 * step & 0xff) << 24);
    u32 next = (4 * step & 0xff) * 0x01010101u;
    Vector vector;
    vector[0] = add_bytes(byte_at(band, offset) * 0x01010101u, rise);
    vector[1] = add_bytes(vector[0], next);
    vector[2] = add_bytes(vector[1], next);
    vector[3] = add_bytes(vector[2], next);
    return vector;
}

// Where a band's aligned middle lies, in offsets from its start.
struct Middle {
    u32 start;
    u32 end;
};

static __device__ inline Middle middle_of(const Band &band) {
    u32 head = (u32)(0 - band.address) % 16;
    if (head > band.bytes) head = band.bytes;
    return {head, head + (band.bytes - head) / 16 * 16};
}

// The single byte that a lane has to see to: lanes 0 to 15 those in front of the middle, 16 to 31 those behind it.
static __device__ inline u32 edge_offset(const Band &band, Middle middle, u32 lane) {
    if (lane < 16) return lane < middle.start ? lane : NOWHERE;
    u32 offset = middle.end + lane - 16;
    return offset < band.bytes ? offset : NOWHERE;
}

// What a lane has seen.
struct Seen {
    u32 first;
    u32 last;
    u32 count;
    u32 value;
};

static __device__ inline void see(Seen &seen, u32 offset, u32 value) {
    if (offset < seen.first) {
        seen.first = offset;
        seen.value = value;
    }
    if (seen.count == 0 || offset > seen.last) seen.last = offset;
    seen.count++;
}

static __device__ inline void fill(const Band &band, u32 lane) {
    Middle middle = middle_of(band);
    u32 edge = edge_offset(band, middle, lane);
    if (edge != NOWHERE) *(GlobalByte *)(band.address + edge) = (u8)byte_at(band, edge);
    // 64-bit offsets: a band may end within 512 bytes of 4 GiB.
    for (u64 offset = middle.start + lane * 16; offset < middle.end; offset += WARP * 16) {
        *(GlobalVector *)(band.address + offset) = vector_at(band, (u32)offset);
    }
}

extern "C" {

// Checks the bands of slots 0 to `slots` - 1. Each changed one is appended to `found` at place `counter` - `counted`, where
// `counted` is what the host last read there: so the counter is never reset. `refill` not 0 restores what was changed.
__global__ void metrale_redzone_check(const GlobalVector *table, u32 slots, Found *found, u32 *counter, u32 counted, u32 refill) {
    u64 warp = warp_of_thread();
    if (warp >= slots) return; // whole warps
    u32 slot = (u32)warp, lane = lane_of_thread();
    const Band band = band_of(table[slot]);
    if (band.bytes == 0) return;

    Middle middle = middle_of(band);
    const volatile GlobalByte *bytes = (const GlobalByte *)band.address;
    u32 edge = edge_offset(band, middle, lane);
    u32 edge_value = edge != NOWHERE ? bytes[edge] : 0;
    bool changed = false;
    for (u64 offset = middle.start + lane * 16; offset < middle.end; offset += WARP * 16) {
        Vector difference = *(const GlobalVector *)(band.address + offset) ^ vector_at(band, (u32)offset);
        changed |= (difference[0] | difference[1] | difference[2] | difference[3]) != 0;
    }
    // Only now, so that the reads of the middle need not wait for the edge.
    changed |= edge != NOWHERE && edge_value != byte_at(band, edge);
    if (!any_lane(changed)) return;

    // Rare from here on, so read once more, byte by byte, and plainly.
    Seen seen = {NOWHERE, 0, 0, 0};
    for (u64 offset = lane; offset < band.bytes; offset += WARP) {
        u32 value = bytes[offset];
        if (value != byte_at(band, (u32)offset)) see(seen, (u32)offset, value);
    }
    for (u32 mask = WARP / 2; mask > 0; mask /= 2) {
        u32 first = from_lane_xor(seen.first, mask), last = from_lane_xor(seen.last, mask);
        u32 count = from_lane_xor(seen.count, mask), value = from_lane_xor(seen.value, mask);
        if (first < seen.first) {
            seen.first = first;
            seen.value = value;
        }
        if (last > seen.last) seen.last = last;
        seen.count += count;
    }
    // A writer that is still at work may have put the byte back in between.
    if (seen.count == 0) return;
    if (lane == 0) {
        u32 place = (u32)__nvvm_atom_add_gen_i((int *)counter, 1) - counted;
        found[place] = {slot, seen.first, seen.last, seen.count, seen.value};
    }
    if (refill) fill(band, lane);
}

// Fills the bands of `count` slots from `first` on.
__global__ void metrale_redzone_fill(const GlobalVector *table, u32 first, u32 count) {
    u64 warp = warp_of_thread();
    if (warp >= count) return;
    fill(band_of(table[first + (u32)warp]), lane_of_thread());
}

// Puts `count` updates into the table, and fills the bands that are new. Slots of one batch differ.
__global__ void metrale_redzone_update(Band *table, const Update *updates, u32 count) {
    u64 warp = warp_of_thread();
    if (warp >= count) return;
    u32 lane = lane_of_thread();
    const Update update = updates[warp];
    if (lane == 0) table[update.slot] = update.band;
    if (update.fill) fill(update.band, lane);
}
}
