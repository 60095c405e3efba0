<?php

/**
 * artisan.php queue:failed | queue:retry ID... | queue:forget ID | queue:flush | queue:prune-failed: Laravel's own commands on
 * failed jobs, with its own provider, on the SQLite file that RIG_FAILED names, in the time zone RIG_TIMEZONE. `migrate` makes the table, as Laravel's migration does;
 * `fail CONNECTION QUEUE PAYLOAD` logs a job as failed, as its worker does.
 */

declare(strict_types=1);

use Illuminate\Console\Application;
use Illuminate\Database\Capsule\Manager as Database;
use Illuminate\Database\Schema\Blueprint;
use Illuminate\Queue\Console\FlushFailedCommand;
use Illuminate\Queue\Console\ForgetFailedCommand;
use Illuminate\Queue\Console\ListFailedCommand;
use Illuminate\Queue\Console\PruneFailedJobsCommand;
use Illuminate\Queue\Console\RetryCommand;
use Illuminate\Queue\Failed\DatabaseUuidFailedJobProvider;

require __DIR__.'/bootstrap.php';
foreach (['Console', 'Database'] as $part) {
    require_once "Illuminate/{$part}/autoload.php";
}

$app = application();
$database = new Database($app);
$database->addConnection(['driver' => 'sqlite', 'database' => setting('FAILED')]);
$app->instance('queue.failer', new DatabaseUuidFailedJobProvider(
    $database->getDatabaseManager(), 'default', 'failed_jobs'
));

if ($argv[1] === 'migrate') {
    $database->getConnection()->getSchemaBuilder()->create('failed_jobs', static function (Blueprint $table): void {
        $table->id();
        $table->string('uuid')->unique();
        $table->text('connection');
        $table->text('queue');
        $table->longText('payload');
        $table->longText('exception');
        $table->timestamp('failed_at')->useCurrent();
    });
    exit(0);
}
if ($argv[1] === 'fail') {
    echo $app['queue.failer']->log($argv[2], $argv[3], $argv[4], new RuntimeException('it failed in PHP'));
    exit(0);
}
$artisan = new Application($app, $app['events'], '8');
$artisan->resolveCommands([
    ListFailedCommand::class, RetryCommand::class, ForgetFailedCommand::class, FlushFailedCommand::class,
    PruneFailedJobsCommand::class,
]);
date_default_timezone_set(setting('TIMEZONE', 'UTC')); // as Laravel does with `timezone` of config/app.php
exit($artisan->run());
