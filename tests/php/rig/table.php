<?php

/** Makes the table jobs, as the migration of `php artisan queue:table` does. */

declare(strict_types=1);

use Illuminate\Database\Schema\Blueprint;

require __DIR__.'/bootstrap.php';

application()['db']->connection()->getSchemaBuilder()->create('jobs', static function (Blueprint $table): void {
    $table->bigIncrements('id');
    $table->string('queue')->index();
    $table->longText('payload');
    $table->unsignedTinyInteger('attempts');
    $table->unsignedInteger('reserved_at')->nullable();
    $table->unsignedInteger('available_at');
    $table->unsignedInteger('created_at');
});
