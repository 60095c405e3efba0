<?php

/**
 * What operators do through Laravel's cache, as JSON on the command line:
 *   {"restart": true}              queue:restart, with the real command
 *   {"put": "NAME", "value": 1}    NAME = 1
 *   {"forever": "NAME"}            NAME = true for ever: how newer releases pause queues
 *   {"forget": "NAME"}             and how they resume them
 *   {"get": "NAME"}                prints the value as JSON
 */

declare(strict_types=1);

use Illuminate\Queue\Console\RestartCommand;
use Symfony\Component\Console\Input\ArrayInput;
use Symfony\Component\Console\Output\NullOutput;

require __DIR__.'/bootstrap.php';
require_once 'Illuminate/Console/autoload.php';

$app = application();
$cache = $app['cache.store'];
$given = argument();

if (isset($given['restart'])) {
    $command = new RestartCommand($cache);
    $command->setLaravel($app);
    $command->run(new ArrayInput([]), new NullOutput);
}
if (isset($given['put'])) {
    $cache->forever($given['put'], $given['value']);
}
if (isset($given['forever'])) {
    $cache->forever($given['forever'], true);
}
if (isset($given['forget'])) {
    $cache->forget($given['forget']);
}
if (isset($given['get'])) {
    echo json_encode($cache->get($given['get'])), "\n";
}
