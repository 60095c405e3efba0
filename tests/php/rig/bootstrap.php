<?php

/**
 * A Laravel application reduced to what its queue needs: the real Illuminate classes, wired by hand. push.php, work.php
 * and cache.php require this file; RIG_... variables in the environment say which Redis they talk to.
 */

declare(strict_types=1);

use App\Jobs\Again;
use App\Jobs\Buries;
use App\Jobs\Report;
use App\Jobs\Stuck;
use Illuminate\Bus\Dispatcher as BusDispatcher;
use Illuminate\Cache\RedisStore;
use Illuminate\Cache\Repository;
use Illuminate\Container\Container;
use Illuminate\Contracts\Bus\Dispatcher as BusContract;
use Illuminate\Contracts\Container\Container as ContainerContract;
use Illuminate\Contracts\Debug\ExceptionHandler;
use Illuminate\Contracts\Events\Dispatcher as EventsContract;
use Illuminate\Database\Capsule\Manager as Database;
use Illuminate\Events\Dispatcher as Events;
use Illuminate\Queue\Capsule\Manager;
use Illuminate\Redis\RedisManager;

// The release under test is older than the PHP it runs on: its deprecations are not ours to hear.
error_reporting(E_ALL & ~E_DEPRECATED);
ini_set('display_errors', 'stderr');

foreach (['Bus', 'Cache', 'Container', 'Events', 'Queue', 'Redis'] as $part) {
    require_once "Illuminate/{$part}/autoload.php";
}
require_once __DIR__.'/jobs.php';
if (getenv('RIG_PROVIDER')) {
    require getenv('RIG_PROVIDER'); // what an application's service provider does when it boots
}

function setting(string $name, string $default = ''): string
{
    $value = getenv("RIG_{$name}");

    return $value === false ? $default : $value;
}

function optional_int(string $name): ?int
{
    return setting($name) === '' ? null : (int) setting($name);
}

/** Queues in the tubes of the beanstalkd named by RIG_BEANSTALKD, as host:port. */
function with_beanstalkd(Container $app, Manager $capsule): void
{
    require_once 'Pheanstalk/autoload.php';
    [$host, $port] = explode(':', setting('BEANSTALKD'));
    $capsule->addConnection([
        'driver' => 'beanstalkd',
        'host' => $host,
        'port' => (int) $port,
        'queue' => 'default',
        'retry_after' => (int) setting('RETRY_AFTER', '90'),
        'block_for' => 0,
    ], 'beanstalkd');
    $app['config']['queue.default'] = 'beanstalkd';
}

/** @return array<string, mixed> the JSON object given as the script's first argument */
function argument(): array
{
    return json_decode($GLOBALS['argv'][1] ?? '{}', true, 512, JSON_THROW_ON_ERROR);
}

/** Laravel's helper, which a chain calls for its next job. */
function dispatch(object $job): mixed
{
    return Container::getInstance()->make(BusContract::class)->dispatch($job);
}

/** One line on stderr for each error, as a log would have it. */
final class LogErrors implements ExceptionHandler
{
    public function report(Throwable $e): void
    {
        fwrite(STDERR, get_class($e).': '.$e->getMessage()."\n");
    }

    public function shouldReport(Throwable $e): bool
    {
        return true;
    }

    public function render($request, Throwable $e)
    {
        throw $e;
    }

    public function renderForConsole($output, Throwable $e): void
    {
        $this->report($e);
    }
}

/** A unix socket's path in RIG_HOST, or a host and a port. Queues and cache have a database each, as in the skeleton. */
function redis(Container $app): RedisManager
{
    if (setting('CLUSTER') !== '') {
        return cluster($app);
    }
    $server = ['host' => setting('HOST', '127.0.0.1'), 'port' => (int) setting('PORT', '6379')];
    if ($server['host'][0] === '/') {
        $server['port'] = 0;
    }
    if (setting('USER') !== '') {
        $server['password'] = [setting('USER'), setting('PASSWORD')]; // Laravel 8 hands it to phpredis as it is
    }

    return new RedisManager($app, 'phpredis', [
        'options' => ['prefix' => setting('PREFIX', 'laravel_database_')],
        'default' => $server + ['database' => (int) setting('DATABASE', '0')],
        'cache' => $server + ['database' => (int) setting('CACHE_DATABASE', '1')],
    ]);
}

/** Queues in the table jobs of the database described by RIG_DATABASES as JSON, as in config/database.php. */
function with_database(Container $app, Manager $capsule): void
{
    require_once 'Illuminate/Database/autoload.php';
    $database = new Database($app);
    $database->addConnection(json_decode(setting('DATABASES'), true, 8, JSON_THROW_ON_ERROR));
    $app->instance('db', $database->getDatabaseManager());
    $capsule->addConnection([
        'driver' => 'database',
        'table' => 'jobs',
        'queue' => 'default',
        'retry_after' => (int) setting('RETRY_AFTER', '90'),
    ], 'database');
    $app['config']['queue.default'] = 'database';
}

/** RIG_CLUSTER: `host:port,host:port`. A cluster has one database. */
function cluster(Container $app): RedisManager
{
    $nodes = [];
    foreach (explode(',', setting('CLUSTER')) as $place) {
        [$host, $port] = explode(':', $place);
        $nodes[] = ['host' => $host, 'port' => (int) $port];
    }

    return new RedisManager($app, 'phpredis', [
        'options' => ['cluster' => 'redis', 'prefix' => setting('PREFIX', 'laravel_database_')],
        'clusters' => ['default' => $nodes, 'cache' => $nodes],
    ]);
}

function application(): Container
{
    $app = new Container;
    Container::setInstance($app);
    $app->instance(ContainerContract::class, $app);
    $app->instance(ExceptionHandler::class, new LogErrors);
    $app->instance('events', new Events($app));
    $app->alias('events', EventsContract::class);
    $app->instance('redis', redis($app));
    // The Redis cache store; it adds the ":" to the prefix by itself.
    $store = new RedisStore($app['redis'], setting('CACHE_PREFIX', 'laravel_cache'), 'cache');
    $app->instance('cache.store', new Repository($store));

    $capsule = new Manager($app);
    $capsule->addConnection([
        'driver' => 'redis',
        'connection' => 'default',
        'queue' => 'default',
        'retry_after' => (int) setting('RETRY_AFTER', '90'),
        'block_for' => optional_int('BLOCK_FOR'),
    ], 'redis');
    $app['config']['queue.default'] = 'redis';
    if (setting('DATABASES') !== '') {
        with_database($app, $capsule);
    }
    if (setting('BEANSTALKD') !== '') {
        with_beanstalkd($app, $capsule);
    }
    $app->instance('queue', $capsule->getQueueManager());

    $app->singleton(BusContract::class, static fn () => new BusDispatcher(
        $app,
        static fn ($connection = null) => $app['queue']->connection($connection),
    ));
    // String jobs whose name is not a class: what a service provider of the application would bind.
    $app->bind('shared.note', Report::class);
    $app->bind('shared.again', Again::class);
    $app->bind('shared.buried', Buries::class);
    $app->bind('fails.once', Report::class);
    $app->bind('stuck.in.php', Stuck::class);
    $app->bind('stuck.in.python', Report::class);

    return $app;
}
