// "later": an accelerator of two devices that every machine has. What is asked of a stream is done later, by a thread of the stream's own.
//
//     tensor.to("later:1", non_blocking=True) ──▶ the stream's queue ──▶ its thread: waits (set_delay_us, to the device), then copies
//
// 1. Nothing that is queued keeps its memory: whoever frees or overwrites a source before the copy has run gets what he deserves.
//    (A driver copies pageable memory at once; this one does not, so that every mistake shows.)
// 2. Device memory that is freed belongs to the stream it was made for, at once, unless record_stream said that others use it: then
//    when these have come so far. It is a caching allocator, as CUDA's.
// 3. Pinned memory is overwritten when it is freed: when the copies from it have run, as with torch's own host allocators, or at once
//    (forget_pinned_copies).
// 4. Computing is the CPU's: it waits for the current stream, and for that one alone.
// 5. A forked child has no device.
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>
#include <unistd.h>

#include <condition_variable>
#include <deque>
#include <map>
#include <set>
#include <thread>

namespace {

constexpr int DEVICES = 2, STREAMS = 8;
constexpr auto LATER = c10::DeviceType::PrivateUse1;
std::atomic<int> delay_us{0}, under_way{0};
std::atomic<bool> pins{true}, remembers_pinned_copies{true}, has_streams{true};
const pid_t owner = getpid();
thread_local int current_device = 0;
thread_local c10::StreamId current_streams[DEVICES] = {};

// --- streams and events ---

struct Mark {
  std::mutex mutex;
  std::condition_variable changed;
  bool reached = false;
  void reach() {
    std::lock_guard<std::mutex> lock(mutex);
    reached = true;
    changed.notify_all();
  }
  void wait() {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [this] { return reached; });
  }
  bool is_reached() {
    std::lock_guard<std::mutex> lock(mutex);
    return reached;
  }
};
using MarkPtr = std::shared_ptr<Mark>;

struct Lane {  // one stream
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> queue;
  bool started = false;

  void add(std::function<void()> work) {
    TORCH_CHECK(getpid() == owner, "this process was forked: it has no such device");
    std::lock_guard<std::mutex> lock(mutex);
    if (!started) std::thread([this] { run(); }).detach();
    started = true;
    queue.push_back(std::move(work));
    changed.notify_all();
  }
  MarkPtr mark() {
    auto mark = std::make_shared<Mark>();
    add([mark] { mark->reach(); });
    return mark;
  }
  void run() {
    while (true) {
      std::function<void()> work;
      {
        std::unique_lock<std::mutex> lock(mutex);
        changed.wait(lock, [this] { return !queue.empty(); });
        work = std::move(queue.front());
        queue.pop_front();
      }
      work();
    }
  }
};

auto& lanes = *new std::array<std::array<Lane, STREAMS>, DEVICES>();  // never destroyed: their threads run to the end

Lane& lane_of(c10::Stream stream) { return lanes[stream.device_index()][stream.id()]; }
Lane& current_lane(int device) { return lanes[device][current_streams[device]]; }
int index_of(c10::Device device) { return device.has_index() ? device.index() : current_device; }

// --- memory ---

struct Block {
  void* data;
  size_t bytes;
  std::pair<int, c10::StreamId> home;  // whose it is when it is free
  std::set<Lane*> users;
};

struct Pool {
  std::mutex mutex;
  std::map<std::pair<std::pair<int, c10::StreamId>, size_t>, std::vector<Block*>> free;
  std::vector<std::pair<Block*, std::vector<MarkPtr>>> waiting;
  std::map<char*, Block*> blocks;

  Block* take(std::pair<int, c10::StreamId> home, size_t bytes) {
    std::lock_guard<std::mutex> lock(mutex);
    welcome_back();
    auto& spare = free[{home, bytes}];
    if (!spare.empty()) {
      auto block = spare.back();
      spare.pop_back();
      return block;
    }
    auto block = new Block{::operator new(bytes), bytes, home, {}};
    return blocks[static_cast<char*>(block->data)] = block;
  }
  void give_back(Block* block) {
    std::lock_guard<std::mutex> lock(mutex);
    std::vector<MarkPtr> marks;
    if (getpid() == owner)
      for (auto lane : block->users) marks.push_back(lane->mark());
    block->users.clear();
    waiting.push_back({block, marks});
    welcome_back();
  }
  Block* holding(const void* pointer) {
    std::lock_guard<std::mutex> lock(mutex);
    auto after = blocks.upper_bound(static_cast<char*>(const_cast<void*>(pointer)));
    if (after == blocks.begin()) return nullptr;
    auto block = std::prev(after)->second;
    return pointer < static_cast<char*>(block->data) + block->bytes ? block : nullptr;
  }
  void welcome_back() {
    for (size_t i = 0; i < waiting.size();) {
      auto [block, marks] = waiting[i];
      if (std::all_of(marks.begin(), marks.end(), [](auto& mark) { return mark->is_reached(); })) {
        if (block->home.first < 0) std::memset(block->data, 0xA5, block->bytes);
        free[{block->home, block->bytes}].push_back(block);
        waiting.erase(waiting.begin() + i);
      } else {
        i++;
      }
    }
  }
};

auto& on_device = *new Pool();
auto& pinned = *new Pool();

struct DeviceMemory : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    c10::Device device(LATER, current_device);
    if (!bytes) return {nullptr, device};
    auto block = on_device.take({current_device, current_streams[current_device]}, bytes);
    return {block->data, block, [](void* block) { on_device.give_back(static_cast<Block*>(block)); }, device};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
};

struct PinnedMemory : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    TORCH_CHECK(pins, "no page-locked memory is left");
    if (!bytes) return {nullptr, c10::kCPU};
    auto block = pinned.take({-1, 0}, bytes);
    return {block->data, block, [](void* block) { pinned.give_back(static_cast<Block*>(block)); }, c10::kCPU};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
};

auto& device_memory = *new DeviceMemory();
auto& pinned_memory = *new PinnedMemory();

// --- what torch asks of a device ---

struct Guard : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return LATER; }
  c10::Device getDevice() const override { return {LATER, static_cast<c10::DeviceIndex>(current_device)}; }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(index_of(device) < DEVICES, "there are two devices");
    current_device = index_of(device);
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current_device = index_of(device); }
  c10::Device exchangeDevice(c10::Device device) const override {
    auto before = getDevice();
    setDevice(device);
    return before;
  }
  c10::DeviceIndex deviceCount() const noexcept override { return getpid() == owner ? DEVICES : 0; }

  c10::Stream stream(int device, c10::StreamId id) const {
    return c10::Stream(c10::Stream::UNSAFE, {LATER, static_cast<c10::DeviceIndex>(device)}, id);
  }
  c10::Stream getStream(c10::Device device) const override { return stream(index_of(device), current_streams[index_of(device)]); }
  c10::Stream getDefaultStream(c10::Device device) const override { return stream(index_of(device), 0); }
  c10::Stream getNewStream(c10::Device device, int) const override {  // from a pool, in turn, as CUDA's
    static std::atomic<int> made[DEVICES];
    TORCH_CHECK(has_streams, "this device has one stream");
    return stream(index_of(device), 1 + made[index_of(device)]++ % (STREAMS - 1));
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return getNewStream(device, 0); }
  c10::Stream exchangeStream(c10::Stream next) const override {
    auto before = getStream(next.device());
    current_streams[next.device_index()] = next.id();
    return before;
  }
  bool queryStream(const c10::Stream& stream) const override { return lane_of(stream).mark()->is_reached(); }
  void synchronizeStream(const c10::Stream& stream) const override { lane_of(stream).mark()->wait(); }
  void synchronizeDevice(const c10::DeviceIndex device) const override {
    for (auto& lane : lanes[device])
      if (lane.started) lane.mark()->wait();
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    if (data) static_cast<Block*>(data.get_context())->users.insert(&lane_of(stream));
  }

  static MarkPtr& mark_of(void* event) { return *static_cast<MarkPtr*>(event); }
  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex, const c10::EventFlag) const override {
    auto mark = lane_of(stream).mark();
    if (*event)
      mark_of(*event) = mark;
    else
      *event = new MarkPtr(mark);
  }
  void block(void* event, const c10::Stream& stream) const override {
    auto mark = mark_of(event);
    lane_of(stream).add([mark] { mark->wait(); });
  }
  bool queryEvent(void* event) const override { return !event || mark_of(event)->is_reached(); }
  void synchronizeEvent(void* event) const override { mark_of(event)->wait(); }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override { delete static_cast<MarkPtr*>(event); }
};

struct Hooks : at::PrivateUse1HooksInterface {
  bool isBuilt() const { return true; }
  bool isAvailable() const { return getpid() == owner; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return DEVICES; }
  c10::DeviceIndex getCurrentDevice() const override { return current_device; }
  void setCurrentDevice(c10::DeviceIndex device) const override { current_device = device; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override { return std::exchange(current_device, device); }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override { return exchangeDevice(device); }
  bool isPinnedPtr(const void* pointer) const override { return pinned.holding(pointer) != nullptr; }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_memory; }
};

auto& guard = *new Guard();
auto& hooks = *new Hooks();

// --- the few operations of its own ---

at::Tensor empty(c10::IntArrayRef size, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout>, std::optional<c10::Device> device,
                 std::optional<bool>, std::optional<c10::MemoryFormat> format) {
  const c10::DeviceGuard there(c10::device_or_default(device));
  return at::detail::empty_generic(size, &device_memory, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout>,
                         std::optional<c10::Device> device, std::optional<bool>) {
  const c10::DeviceGuard there(c10::device_or_default(device));
  const c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_strided_generic(size, stride, &device_memory, keys, c10::dtype_or_default(dtype));
}

at::Tensor as_host(const at::Tensor& tensor) {  // the same memory, which the CPU can see: whoever asks has waited for the stream
  if (tensor.is_cpu()) return tensor;
  current_lane(tensor.device().index()).mark()->wait();
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), tensor.options().device(c10::kCPU));
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  const bool one_device = from.is_cpu() || to.is_cpu() || from.device() == to.device();
  const bool plain = from.dtype() == to.dtype() && from.sizes() == to.sizes() && from.strides() == to.strides() && from.is_non_overlapping_and_dense();
  if (!one_device || !plain) {
    as_host(to).copy_(as_host(from));
    return to;
  }
  auto& lane = current_lane((to.is_cpu() ? from : to).device().index());
  auto target = to.data_ptr();
  auto source = from.data_ptr();
  auto bytes = from.nbytes();
  auto takes = std::chrono::microseconds(from.is_cpu() ? delay_us.load() : 0);
  under_way++;
  lane.add([=] {
    std::this_thread::sleep_for(takes);
    std::memcpy(target, source, bytes);
    under_way--;
  });
  if (remembers_pinned_copies)
    if (auto block = pinned.holding(source)) block->users.insert(&lane);
  if ((from.is_cpu() || to.is_cpu()) && !non_blocking) lane.mark()->wait();
  return to;
}

const at::Tensor& resize(const at::Tensor& tensor, c10::IntArrayRef size, std::optional<c10::MemoryFormat>) {  // what was in it is gone
  auto fresh = empty(size, tensor.scalar_type(), {}, tensor.device(), {}, {});
  tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(fresh.storage());
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  return tensor;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  return copy_from(from, from.sizes() == to.sizes() ? to : resize(to, from.sizes(), {}), false);
}

void record_stream(at::Tensor& tensor, c10::Stream stream) { guard.recordDataPtrOnStream(tensor.storage().data_ptr(), stream); }

void on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) { at::native::cpu_fallback(op, stack); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("as_strided", at::native::as_strided_tensorimpl);
  m.impl("view", at::native::view);
  m.impl("_reshape_alias", at::native::_reshape_alias);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("resize_", resize);
  m.impl("record_stream", record_stream);
}
TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&on_cpu>()); }

const c10::impl::DeviceGuardImplRegistrar registered(LATER, &guard);
const int ready = [] {
  c10::SetAllocator(LATER, &device_memory);
  at::RegisterPrivateUse1HooksInterface(&hooks);
  return 0;
}();

}  // namespace

// --- for tests, by ctypes ---

extern "C" {
void set_delay_us(int us) { delay_us = us; }
void set_pins(bool now) { pins = now; }
void set_has_streams(bool now) { has_streams = now; }
void set_remembers_pinned_copies(bool now) { remembers_pinned_copies = now; }
int copies_under_way() { return under_way; }
int device_now() { return current_device; }
void set_device_now(int device) { current_device = device; }
void keep_busy_us(int device, int us) {  // the current stream, as torch.cuda._sleep does
  current_lane(device).add([us] { std::this_thread::sleep_for(std::chrono::microseconds(us)); });
}
}
