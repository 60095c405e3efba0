"""Buying: the order and its task are saved together, or neither is."""

from collections.abc import Callable

from django.db import transaction

from shop.models import Order
from shop.tasks import confirm


def buy(email: str, pay: Callable[[], object]) -> str:
    """Save the order and enqueue its task in one transaction. Returns the id of the task's result."""
    with transaction.atomic():
        order = Order.objects.create(email=email)
        result = confirm.enqueue(order.pk)
        pay()
    return str(result.id)
