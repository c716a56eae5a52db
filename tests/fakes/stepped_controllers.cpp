// A controller manager whose time is /clock and moves on demand: a time in ns on the standard input waits until /clock
// has reached it, runs the cycle of that time, and answers "done".
//
//   stepped_controllers UPDATE_HZ --ros-args --params-file controllers.yaml
//
// For the real controllers of a ROS 2 that has their libraries and not their headers (the group ros-test): the few
// classes that are needed are declared here, each with more room than the library's own takes.

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

enum rcl_clock_type_e { UNINITIALIZED, ROS_TIME, SYSTEM_TIME, STEADY_TIME };
struct rcutils_allocator_s { void * members[5]; };
extern "C" rcutils_allocator_s rcutils_get_default_allocator();

template <int SIZE>
struct Room { alignas(16) char room[SIZE]; };

namespace rclcpp {

enum class SignalHandlerOptions { All, SigInt, SigTerm, None };

class InitOptions : Room<4096> {
 public:
  explicit InitOptions(rcutils_allocator_s);
};

class NodeOptions : Room<8192> {
 public:
  NodeOptions(const NodeOptions &);
  virtual ~NodeOptions();
  NodeOptions & arguments(const std::vector<std::string> &);
};

class ExecutorOptions : Room<1024> {
 public:
  ExecutorOptions();
};

class Time : Room<64> {
 public:
  Time(int64_t, rcl_clock_type_e);
  ~Time();
  int64_t nanoseconds() const;
};

class Duration : Room<64> {
 public:
  Duration(int32_t, uint32_t);
};

class Node : public std::enable_shared_from_this<Node> {
 public:
  virtual ~Node();
  Time now() const;

 private:
  char room[16384];
};

class Executor {
 public:
  virtual ~Executor();
  void add_node(std::shared_ptr<Node>, bool);

 private:
  char room[16384];
};

namespace executors {
class SingleThreadedExecutor : public Executor {
 public:
  explicit SingleThreadedExecutor(const ExecutorOptions &);
  ~SingleThreadedExecutor() override;
  void spin();
};
}  // namespace executors

void init(int, char const * const *, const InitOptions &, SignalHandlerOptions);

}  // namespace rclcpp

namespace controller_interface {
enum class return_type : std::uint8_t { OK, ERROR };
}

namespace controller_manager {

rclcpp::NodeOptions get_cm_node_options();

class ControllerManager : public rclcpp::Node {
 public:
  ControllerManager(
    std::shared_ptr<rclcpp::Executor>, const std::string &, const std::string &, const rclcpp::NodeOptions &);
  ~ControllerManager() override;
  void read(const rclcpp::Time &, const rclcpp::Duration &);
  controller_interface::return_type update(const rclcpp::Time &, const rclcpp::Duration &);
  void write(const rclcpp::Time &, const rclcpp::Duration &);

 private:
  char room[262144];
};

}  // namespace controller_manager

int main(int argc, char ** argv) {
  const int64_t period_ns = 1000000000 / std::atoi(argv[1]);
  rclcpp::init(
    argc, argv, rclcpp::InitOptions(rcutils_get_default_allocator()), rclcpp::SignalHandlerOptions::None);
  auto executor = std::make_shared<rclcpp::executors::SingleThreadedExecutor>(rclcpp::ExecutorOptions());
  auto options = controller_manager::get_cm_node_options();
  options.arguments(std::vector<std::string>(argv + 2, argv + argc));  // from here the controllers get their parameters
  auto manager =
    std::make_shared<controller_manager::ControllerManager>(executor, "controller_manager", "", options);
  executor->add_node(manager, true);
  std::thread([&] { executor->spin(); }).detach();
  const rclcpp::Duration period(0, static_cast<uint32_t>(period_ns));
  for (int64_t now_ns; std::cin >> now_ns;) {
    while (manager->now().nanoseconds() < now_ns) {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    const rclcpp::Time now(now_ns, ROS_TIME);
    manager->read(now, period);
    manager->update(now, period);
    manager->write(now, period);
    std::puts("done");
    std::fflush(stdout);
  }
  _exit(0);  // the libraries' own threads are still at work
}
