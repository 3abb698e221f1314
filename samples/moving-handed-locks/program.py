"""Healthy: locks as signals, given back by a signal's handler, through a queue, by a timer, by a function of the module."""
import os
import queue
import signal
import threading
import time

import ready

by_handler, by_queue, by_timer, by_name = (threading.Lock() for _ in range(4))
jobs = queue.Queue()
rounds = {}
asked = {}


def count(name):
    rounds[name] = rounds.get(name, 0) + 1


def handler(number, frame):
    if asked.pop("handler", False):
        by_handler.release()


def serve():
    while True:
        lock = jobs.get()
        time.sleep(0.001)
        lock.release()


def through_queue():
    while True:
        with by_queue:
            jobs.put(by_queue)
            by_queue.acquire()
        count("queue")


def with_timer():
    while True:
        with by_timer:
            timer = threading.Timer(0.002, by_timer.release)
            timer.daemon = True
            timer.start()
            wait_for(by_timer)
        count("timer")


def wait_for(lock):
    lock.acquire()


def give():
    by_name.release()


def with_name():
    while True:
        with by_name:
            asked["name"] = True
            wait_for(by_name)
        count("name")


def poke():
    while True:
        time.sleep(0.002)
        os.kill(os.getpid(), signal.SIGUSR1)
        if asked.pop("name", False):
            give()


signal.signal(signal.SIGUSR1, handler)
for function in serve, through_queue, with_timer, with_name, poke:
    ready.start(function, function.__name__)
while len(rounds) < 3:
    time.sleep(0.001)
ready.begin(0)
while True:
    with by_handler:
        asked["handler"] = True
        wait_for(by_handler)
    count("handler")
