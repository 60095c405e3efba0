<?php

/**
 * push.php '{"jobs": [{"name": "shared.note", "data": {...}, "queue": "q", "delay": 2, "count": 10}, ...]}'
 * Pushes each entry `count` times (1), now or after `delay` seconds, and prints one job id a line. Without a `name` it
 * is the object job; with a `chain`, it is followed by the job HandOver, or by the string job of the name `chain`. With "number": "n" the data of the i-th copy gets the key n with the value i.
 */

declare(strict_types=1);

use App\Jobs\HandOver;
use App\Jobs\Invoice;

require __DIR__.'/bootstrap.php';

$queue = application()['queue']->connection();

foreach (argument()['jobs'] as $entry) {
    for ($i = 0; $i < ($entry['count'] ?? 1); $i++) {
        $data = $entry['data'] ?? '';
        if (isset($entry['number'])) {
            $data = [$entry['number'] => $i] + ($data === '' ? [] : $data);
        }
        $job = isset($entry['name']) ? $entry['name'] : new Invoice($data);
        if (isset($entry['chain'])) {
            $next = $entry['chain'] === 'HandOver' ? new HandOver : $entry['chain'];
            $job->chain([$next])->allOnQueue($entry['queue']);
        }
        $given = isset($entry['name']) ? $data : '';
        $id = isset($entry['delay'])
            ? $queue->later($entry['delay'], $job, $given, $entry['queue'] ?? null)
            : $queue->push($job, $given, $entry['queue'] ?? null);
        echo is_object($id) ? $id->getId() : $id, "\n"; // beanstalkd's driver gives a job
    }
}
