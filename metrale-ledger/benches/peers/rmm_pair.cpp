// SPDX-License-Identifier: MIT OR Apache-2.0
// What an allocation and its free cost in the tracking_resource_adaptor of RMM 26.10, over an upstream that does nothing: the
// work that `benches/sides` has the ledger do, at the same addresses in the same order. Needs no GPU and makes no driver call.
//
//   rmm_pair LIVE ascending|scattered
//
// prints a line for each pattern and number of threads: PATTERN THREADS NANOSECONDS, a pair as each thread sees it.
//
// The wheels librmm-cu12, rapids-logger, nvidia-cuda-runtime-cu12 and nvidia-cuda-nvcc-cu12, unpacked into one folder W, have
// what it takes:
//   g++ -O3 -std=c++20 -DNDEBUG rmm_pair.cpp -o rmm_pair -IW/librmm/include -IW/librmm/include/rapids
//     -IW/rapids_logger/include -IW/nvidia/cuda_runtime/include -IW/nvidia/cuda_nvcc/include
//     -LW/librmm/lib64 -LW/rapids_logger/lib64 -LW/nvidia/cuda_runtime/lib
//     -lrmm -lrapids_logger -lcudart_static -ldl -lpthread -lrt
// and `LD_LIBRARY_PATH=W/librmm/lib64:W/rapids_logger/lib64` runs it.

#include <rmm/mr/tracking_resource_adaptor.hpp>

#include <cuda/memory_resource>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

namespace {

constexpr std::uint64_t BASE = 0x7f0e'0000'0000;
constexpr std::uint64_t PLACES = 1 << 21;
constexpr std::size_t BYTES = 1000;
constexpr std::size_t ALIGNMENT = 256;

// What the upstream answers next.
thread_local std::uint64_t next_address = 0;

struct Nothing {
  void* allocate(cuda::stream_ref, std::size_t, std::size_t) { return reinterpret_cast<void*>(next_address); }
  void deallocate(cuda::stream_ref, void*, std::size_t, std::size_t) noexcept {}
  void* allocate_sync(std::size_t, std::size_t) { return reinterpret_cast<void*>(next_address); }
  void deallocate_sync(void*, std::size_t, std::size_t) noexcept {}
  bool operator==(Nothing const&) const noexcept { return true; }
  bool operator!=(Nothing const&) const noexcept { return false; }
  friend void get_property(Nothing const&, cuda::mr::device_accessible) noexcept {}
};

enum class Pattern { Place, Next, Elsewhere, Again };

std::uint64_t random_number(std::uint64_t i) {
  std::uint64_t z = (i + 1) * 0x9e37'79b9'7f4a'7c15;
  z = (z ^ (z >> 30)) * 0xbf58'476d'1ce4'e5b9;
  z = (z ^ (z >> 27)) * 0x94d0'49bb'1331'11eb;
  return z ^ (z >> 31);
}

class Side {
 public:
  Side(std::uint64_t live, bool scattered) : live_{live}, scattered_{scattered} {
    for (std::uint64_t n = 0; n < live; ++n) record(address(n));
  }

  // Nanoseconds a pair.
  double run(std::uint64_t threads, std::uint64_t pairs, Pattern pattern, std::uint64_t round) {
    std::uint64_t const first = pattern == Pattern::Again ? 0 : live_;
    std::uint64_t const last = pattern == Pattern::Again ? live_ : PLACES;
    std::uint64_t const places = (last - first) / threads;
    auto const work = [&](std::uint64_t t) {
      auto const begin = std::chrono::steady_clock::now();
      for (std::uint64_t i = round * pairs; i < (round + 1) * pairs; ++i) {
        std::uint64_t place = 0;
        if (pattern == Pattern::Next) place = i % places;
        if (pattern == Pattern::Elsewhere || pattern == Pattern::Again) place = random_number(i * threads + t) % places;
        std::uint64_t const at = address(first + place * threads + t);
        if (pattern == Pattern::Again) {
          forget(at);
          record(at);
        } else {
          record(at);
          forget(at);
        }
      }
      std::chrono::duration<double, std::nano> const took = std::chrono::steady_clock::now() - begin;
      return took.count() / static_cast<double>(pairs);
    };
    if (threads == 1) return work(0);
    std::barrier start{static_cast<std::ptrdiff_t>(threads)};
    std::vector<double> times(threads);
    std::vector<std::thread> all;
    for (std::uint64_t t = 0; t < threads; ++t) {
      all.emplace_back([&, t] {
        start.arrive_and_wait();
        times[t] = work(t);
      });
    }
    for (auto& thread : all) thread.join();
    double sum = 0;
    for (double time : times) sum += time;
    return sum / static_cast<double>(threads);
  }

 private:
  std::uint64_t address(std::uint64_t n) const {
    return BASE + ((scattered_ ? n * 0x9e37'79b9 : n) % PLACES) * 1024;
  }

  void record(std::uint64_t at) {
    next_address = at;
    (void)tracking_.allocate(stream_, BYTES, ALIGNMENT);
  }

  void forget(std::uint64_t at) { tracking_.deallocate(stream_, reinterpret_cast<void*>(at), BYTES, ALIGNMENT); }

  std::uint64_t live_;
  bool scattered_;
  cuda::stream_ref stream_{cudaStream_t{nullptr}};
  rmm::mr::tracking_resource_adaptor tracking_{cuda::mr::any_resource<cuda::mr::device_accessible>{Nothing{}}};
};

}  // namespace

int main(int argc, char** argv) {
  bool const scattered = argc == 3 && std::strcmp(argv[2], "scattered") == 0;
  char* end = nullptr;
  std::uint64_t const live = argc == 3 ? std::strtoull(argv[1], &end, 10) : PLACES;
  if (argc != 3 || *end != '\0' || live > PLACES / 2 || (live > 0 && live < 8) || !(scattered || std::strcmp(argv[2], "ascending") == 0)) {
    std::fprintf(stderr, "usage: rmm_pair LIVE ascending|scattered, with 0 live or 8 to %llu\n",
                 static_cast<unsigned long long>(PLACES / 2));
    return 2;
  }
  Side side{live, scattered};
  for (std::uint64_t threads : {1, 8}) {
    for (auto [pattern, name] : {std::pair{Pattern::Place, "place"}, {Pattern::Next, "next"},
                                 {Pattern::Elsewhere, "elsewhere"}, {Pattern::Again, "again"}}) {
      if ((pattern == Pattern::Again && live == 0) || (pattern == Pattern::Next && scattered)) continue;
      int const rounds = threads == 1 ? 201 : 3;
      std::uint64_t const pairs = threads == 1 ? 5'000 : 100'000 / threads;
      std::vector<double> times;
      for (int round = 0; round < rounds; ++round) times.push_back(side.run(threads, pairs, pattern, round));
      std::sort(times.begin(), times.end());
      std::printf("%s %llu %.1f\n", name, static_cast<unsigned long long>(threads), times[rounds / 2]);
    }
  }
  return 0;
}
