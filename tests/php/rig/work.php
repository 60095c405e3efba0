<?php

/**
 * work.php '{"queue": "a,b", "sleep": 0.1, "tries": 1, ...}': Laravel's worker daemon, as `queue:work` runs it.
 * Says "ready" on stderr before its first look at the queue, and "failed NAME ID" for each job it fails.
 */

declare(strict_types=1);

use Illuminate\Contracts\Debug\ExceptionHandler;
use Illuminate\Queue\Events\JobFailed;
use Illuminate\Queue\Events\Looping;
use Illuminate\Queue\Worker;
use Illuminate\Queue\WorkerOptions;

require __DIR__.'/bootstrap.php';

$app = application();
$given = argument();
$ready = false;

$app['events']->listen(Looping::class, static function () use (&$ready): void {
    if (! $ready) {
        $ready = true;
        fwrite(STDERR, "ready\n");
    }
});
$app['events']->listen(JobFailed::class, static function (JobFailed $event): void {
    fwrite(STDERR, "failed {$event->job->getName()} {$event->job->getJobId()}\n");
});

$options = new WorkerOptions(
    'default',
    $given['backoff'] ?? 0,
    $given['memory'] ?? 128,
    $given['timeout'] ?? 60,
    $given['sleep'] ?? 3,
    $given['tries'] ?? 1,
    $given['force'] ?? false,
    $given['stop_when_empty'] ?? false,
    $given['max_jobs'] ?? 0,
    $given['max_time'] ?? 0,
    $given['rest'] ?? 0,
);
$worker = new Worker($app['queue'], $app['events'], $app[ExceptionHandler::class], static fn () => false);
$worker->setCache($app['cache.store']);

exit($worker->daemon($app['config']['queue.default'], $given['queue'] ?? 'default', $options));
