<?php

/**
 * The jobs this application knows: string jobs by class name (App\Jobs\Report@fire) and by a name of the team's own,
 * bound in the container (shared.note), and one object job. Each appends a line to the witness file:
 * name, job id, attempt, pid and the data as JSON. A file, so that what ran is known without asking Redis.
 */

declare(strict_types=1);

namespace App\Jobs;

use Illuminate\Bus\Queueable;
use Illuminate\Container\Container;
use Illuminate\Contracts\Queue\Job;
use Illuminate\Contracts\Queue\ShouldQueue;
use Illuminate\Queue\InteractsWithQueue;

/** @param mixed $data */
function witness(string $name, Job $job, $data): void
{
    $flags = JSON_UNESCAPED_UNICODE | JSON_UNESCAPED_SLASHES | JSON_PRESERVE_ZERO_FRACTION | JSON_THROW_ON_ERROR;
    $line = implode(' ', [$name, $job->getJobId(), $job->attempts(), getmypid(), json_encode($data, $flags)]);
    file_put_contents(\setting('WITNESS'), $line."\n", FILE_APPEND);
}

/** A string job: the worker does not delete it, its handler has to. Takes RIG_WORK_US microseconds. */
final class Report
{
    public function fire(Job $job, $data): void
    {
        usleep((int) \setting('WORK_US', '0'));
        witness($job->getName(), $job, $data);
        $job->delete();
    }

    public function failed($data, $error, $uuid): void
    {
        fwrite(STDERR, "failed {$uuid}\n");
    }
}

/** Goes back to its queue: the payload that the pop script re-encoded is what the next worker gets. */
final class Again
{
    public function fire(Job $job, $data): void
    {
        witness($job->getName(), $job, $data);
        $job->release(0);
    }
}

/** Buried: no worker runs it before somebody kicks it. Only on beanstalkd. */
final class Buries
{
    public function fire(Job $job, $data): void
    {
        witness($job->getName(), $job, $data);
        $job->bury();
    }
}

/** Never comes to its end, for tests that end its worker. */
final class Stuck
{
    public function fire(Job $job, $data): void
    {
        witness($job->getName(), $job, $data);
        while (true) {
            sleep(60);
        }
    }
}

/** An object job: serialized PHP in the payload, which only PHP can run. */
final class Invoice implements ShouldQueue
{
    use InteractsWithQueue;
    use Queueable;

    /** @var mixed */
    public $data;

    /** @param mixed $data */
    public function __construct($data)
    {
        $this->data = $data;
    }

    public function handle(): void
    {
        witness(self::class, $this->job, $this->data);
    }
}

/** A member of a chain that hands over to Python: pushes shared.note to the queue `python`. */
final class HandOver implements ShouldQueue
{
    use InteractsWithQueue;
    use Queueable;

    public function handle(): void
    {
        $queue = Container::getInstance()['queue']->connection();
        $queue->pushOn('python', 'shared.note', ['order_id' => 7]);
        witness(self::class, $this->job, null);
    }
}
