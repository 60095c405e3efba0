<?php

/**
 * Laravel's side: its own queue and its own worker, without the rest of the framework.
 *
 *   php laravel.php push 7    as in a controller: Queue::push('podcasts.transcode', ['podcast_id' => 7], 'python')
 *   php laravel.php work      as php artisan queue:work --queue=php
 */

declare(strict_types=1);

namespace App\Jobs;

use Illuminate\Container\Container;
use Illuminate\Contracts\Debug\ExceptionHandler;
use Illuminate\Contracts\Queue\Job;
use Illuminate\Events\Dispatcher;
use Illuminate\Queue\Capsule\Manager;
use Illuminate\Queue\Worker;
use Illuminate\Queue\WorkerOptions;
use Illuminate\Redis\RedisManager;

error_reporting(E_ALL & ~E_DEPRECATED); // of a Laravel that is older than the PHP

if (is_file(__DIR__.'/vendor/autoload.php')) {
    require __DIR__.'/vendor/autoload.php'; // composer
} else {
    foreach (['Container', 'Events', 'Queue', 'Redis'] as $part) {
        require_once "Illuminate/{$part}/autoload.php"; // packages of Debian and Ubuntu
    }
}

/** Python dispatches it as App\Jobs\Publish@fire. */
final class Publish
{
    public function fire(Job $job, array $data): void
    {
        echo "published podcast {$data['podcast_id']}: {$data['file']}\n";
        $job->delete();
    }
}

final class Log implements ExceptionHandler
{
    public function report(\Throwable $e): void
    {
        fwrite(STDERR, "{$e}\n");
    }

    public function shouldReport(\Throwable $e): bool
    {
        return true;
    }

    public function render($request, \Throwable $e)
    {
        throw $e;
    }

    public function renderForConsole($output, \Throwable $e): void
    {
        $this->report($e);
    }
}

// What config/database.php and config/queue.php contain in a real application.
$app = new Container;
Container::setInstance($app);
$app->instance(ExceptionHandler::class, new Log);
$app->instance('events', $events = new Dispatcher($app));
$app->instance('redis', new RedisManager($app, 'phpredis', [
    'options' => ['prefix' => 'laravel_database_'],
    'default' => ['host' => getenv('REDIS_SOCKET'), 'port' => 0],
]));
$capsule = new Manager($app);
$capsule->addConnection(['driver' => 'redis', 'connection' => 'default', 'queue' => 'php', 'retry_after' => 90], 'redis');
$app['config']['queue.default'] = 'redis';
$queues = $capsule->getQueueManager();

if ($argv[1] === 'push') {
    $queues->connection()->push('podcasts.transcode', ['podcast_id' => (int) $argv[2]], 'python');
    echo "pushed podcasts.transcode for podcast {$argv[2]} to the queue python\n";
} else {
    $worker = new Worker($queues, $events, $app[ExceptionHandler::class], static fn (): bool => false);
    exit($worker->daemon('redis', 'php', new WorkerOptions('default', 0, 128, 60, 0.1)));
}
