<?php
// Laravel's own worker and queue under measurement (illuminate/queue 8 as Debian packages it), without an application
// around them. `php laravel.php work [stop-when-empty] [poll]` is the worker, `php laravel.php produce` takes orders as
// common.py does. The jobs are string jobs: the same payload that qd takes, and cheaper for PHP than job objects.

require 'Illuminate/Queue/autoload.php';
require 'Illuminate/Redis/autoload.php';
require 'Illuminate/Events/autoload.php';
require 'Illuminate/Cache/autoload.php';

use Illuminate\Cache\{FileStore, Repository};
use Illuminate\Container\Container;
use Illuminate\Contracts\Debug\ExceptionHandler;
use Illuminate\Events\Dispatcher;
use Illuminate\Filesystem\Filesystem;
use Illuminate\Queue\Capsule\Manager;
use Illuminate\Queue\{Worker, WorkerOptions};
use Illuminate\Redis\RedisManager;
use Illuminate\Support\Carbon;

class Noop
{
    public function fire($job, $data)
    {
        $job->delete();
    }
}

class Stamp
{
    public function fire($job, $data)
    {
        static $pipe = null;
        $pipe ??= fopen(getenv('BENCH_FIFO'), 'w');
        $started = hrtime(true);
        $used = getrusage();
        $cpu = ($used['ru_utime.tv_sec'] + $used['ru_stime.tv_sec']) * 1000000 + $used['ru_utime.tv_usec'] + $used['ru_stime.tv_usec'];
        fwrite($pipe, sprintf("%s %d %d %d %d\n", $data['label'], $data['at'], $started, wall_ns(), $cpu * 1000));
        $job->delete();
    }
}

class Shouting implements ExceptionHandler
{
    public function report(Throwable $e)
    {
        fwrite(STDERR, "$e\n");
    }

    public function shouldReport(Throwable $e)
    {
        return true;
    }

    public function render($request, Throwable $e)
    {
    }

    public function renderForConsole($output, Throwable $e)
    {
    }
}

function wall_ns(): int
{
    [$fraction, $seconds] = explode(' ', microtime());

    return (int) $seconds * 1000000000 + (int) ((float) $fraction * 1e9);
}

function manager(?int $blockFor = 3): Manager
{
    if (getenv('BENCH_BEANSTALKD')) {
        return on_beanstalkd((int) getenv('BENCH_BEANSTALKD'), $blockFor);
    }
    if (getenv('BENCH_DATABASE')) {
        return on_database(json_decode(getenv('BENCH_DATABASE'), true));
    }
    $url = parse_url(getenv('BENCH_REDIS_URL'));
    $queues = new Manager($container = new Container);
    $container->instance('redis', new RedisManager($container, 'phpredis', [
        'default' => ['host' => $url['host'], 'port' => $url['port'], 'database' => 0],
    ]));
    $queues->addConnection([
        'driver' => 'redis', 'connection' => 'default', 'queue' => 'default', 'retry_after' => 90,
        'block_for' => $blockFor,
    ]);

    return $queues;
}

function on_beanstalkd(int $port, ?int $blockFor): Manager
{
    require_once 'Pheanstalk/autoload.php';
    $queues = new Manager(new Container);
    $queues->addConnection([
        'driver' => 'beanstalkd', 'host' => '127.0.0.1', 'port' => $port, 'queue' => 'default', 'retry_after' => 90,
        'block_for' => $blockFor ?? 0,
    ]);

    return $queues;
}

/** @param array<string, mixed> $connection as config/database.php has it */
function on_database(array $connection): Manager
{
    require_once 'Illuminate/Database/autoload.php';
    $queues = new Manager($container = new Container);
    $database = new Illuminate\Database\Capsule\Manager($container);
    $database->addConnection($connection);
    $container->instance('db', $database->getDatabaseManager());
    $queues->addConnection([
        'driver' => 'database', 'table' => 'jobs', 'queue' => 'default', 'retry_after' => 90,
    ]);

    return $queues;
}

function work(bool $stopWhenEmpty, bool $poll): int
{
    // A worker that blocks on an idle queue does not look at the delayed jobs meanwhile; `poll` is Laravel's default.
    $worker = new Worker(manager($poll ? null : 3)->getQueueManager(), new Dispatcher, new Shouting, fn () => false);
    // The restart marker is read in each turn, as in an application; the file cache is Laravel 8's default and the cheapest.
    $worker->setCache(new Repository(new FileStore(new Filesystem, getenv('BENCH_TMP').'/laravel-cache')));

    return $worker->daemon('default', 'default', new WorkerOptions('default', 0, 128, 60, 3, 1, false, $stopWhenEmpty));
}

function produce(): void
{
    $queue = manager()->getConnection();
    $timed = function (callable $push) {
        $began = hrtime(true);
        $push();

        return (hrtime(true) - $began) / 1e9;
    };
    while (($line = fgets(STDIN)) !== false) {
        $order = json_decode($line, true);
        $answer = null;
        switch ($order['do']) {
            case 'single':
                $answer = $timed(function () use ($queue, $order) {
                    for ($i = 0; $i < $order['jobs']; $i++) {
                        $queue->push('Noop');
                    }
                });
                break;
            case 'bulk':
                $answer = $timed(function () use ($queue, $order) {
                    for ($first = 0; $first < $order['jobs']; $first += 1000) {
                        $queue->bulk(array_fill(0, min(1000, $order['jobs'] - $first), 'Noop'));
                    }
                });
                break;
            case 'stamp':
                $queue->push('Stamp', ['label' => $order['label'], 'at' => hrtime(true)]);
                break;
            case 'later':
                foreach ($order['due'] as $number => $due) {
                    $at = Carbon::createFromTimestampMs(intdiv($due, 1000000));
                    $queue->later($at, 'Stamp', ['label' => (string) $number, 'at' => $due]);
                }
                break;
            case 'size':
                $answer = $queue->size();
                break;
        }
        fwrite(STDOUT, json_encode($answer)."\n");
    }
}

if (($argv[1] ?? '') === 'work') {
    exit(work(in_array('stop-when-empty', $argv), in_array('poll', $argv)));
}
produce();
