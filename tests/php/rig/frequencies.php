<?php

/**
 * Read lists of calls, [["weekdays", []], ["hourlyAt", [17]]], as one JSON text, and print the expression that each makes of
 * a real Laravel event, as another.
 */

declare(strict_types=1);

use Illuminate\Console\Scheduling\Event;
use Illuminate\Console\Scheduling\EventMutex;

error_reporting(E_ALL & ~E_DEPRECATED);
ini_set('display_errors', 'stderr');

require_once 'Illuminate/Console/autoload.php';

class NoMutex implements EventMutex
{
    public function create(Event $event) { return true; }

    public function exists(Event $event) { return false; }

    public function forget(Event $event) { }
}

function expression(array $calls): string
{
    $event = new Event(new NoMutex, 'true');
    foreach ($calls as [$word, $arguments]) {
        $event->{$word}(...$arguments);
    }

    return $event->expression;
}

echo json_encode(array_map('expression', json_decode(stream_get_contents(STDIN), true)), JSON_THROW_ON_ERROR);
