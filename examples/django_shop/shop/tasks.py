"""The background work: Django's own Tasks, run by `manage.py qd work`."""

import django

from shop.models import Order

if django.VERSION >= (6, 0):
    from django.tasks import task
else:
    from django_tasks import task


@task
def confirm(order_id: int) -> str:
    order = Order.objects.get(pk=order_id)
    print(f"worker: order {order.pk} of {order.email} is confirmed", flush=True)
    return "confirmed"
