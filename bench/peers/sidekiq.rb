# The Sidekiq app that is measured: required by its worker, and run as a program with `produce` its producer, which takes
# orders as common.py does.

require "json"
require "sidekiq"

Sidekiq.logger.level = Logger::WARN
Redis.silence_deprecations = true # of the redis gem, about calls that Sidekiq makes
options = {url: ENV.fetch("BENCH_REDIS_URL")}
Sidekiq.configure_server { |config| config.redis = options }
Sidekiq.configure_client { |config| config.redis = options }

def now_ns(clock = Process::CLOCK_MONOTONIC)
  Process.clock_gettime(clock, :nanosecond)
end

class Noop
  include Sidekiq::Worker

  def perform
  end
end

class Stamp
  include Sidekiq::Worker

  def perform(label, at)
    started = now_ns
    $pipe ||= File.open(ENV.fetch("BENCH_FIFO"), "w").tap { |pipe| pipe.sync = true }
    cpu = now_ns(Process::CLOCK_PROCESS_CPUTIME_ID)
    $pipe.write("#{label} #{at} #{started} #{now_ns(Process::CLOCK_REALTIME)} #{cpu}\n")
  end
end

class Nap
  include Sidekiq::Worker

  def perform(ms)
    sleep(ms / 1000.0)
  end
end

def timed
  began = now_ns
  yield
  (now_ns - began) / 1e9
end

def bulk(kind, count)
  job, args = kind.start_with?("nap") ? [Nap, [kind.delete_prefix("nap").to_i]] : [Noop, []]
  (0...count).step(1000) do |first|
    Sidekiq::Client.push_bulk("class" => job, "args" => Array.new([1000, count - first].min) { args })
  end
end

def produce
  while (line = $stdin.gets)
    order = JSON.parse(line)
    answer =
      case order["do"]
      when "single" then timed { order["jobs"].times { Noop.perform_async } }
      when "bulk" then timed { bulk(order.fetch("kind", "noop"), order["jobs"]) }
      when "stamp" then Stamp.perform_async(order["label"], now_ns)
      when "urgent" then Stamp.set(queue: "high").perform_async(order["label"], now_ns)
      when "size" then Sidekiq.redis { |redis| redis.llen("queue:default") }
      end
    $stdout.puts(JSON.generate(answer.is_a?(Numeric) ? answer : nil))
    $stdout.flush
  end
end

produce if ARGV.first == "produce"
