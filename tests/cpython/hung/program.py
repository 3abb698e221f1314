"""Threads in every kind of wait: what is read of them is damaged on purpose."""
import signal
import concurrent.futures as cf
import contextlib
import os
import queue
import threading
import time
lock_g = threading.Lock()
lock_g2 = threading.Lock()
rl = threading.RLock()
cond_g = threading.Condition()
cond_l = threading.Condition(threading.Lock())
ev = threading.Event()
sem = threading.Semaphore(0)
bar = threading.Barrier(2)
jobs = queue.Queue()
sq = queue.SimpleQueue()
fut = cf.Future()
class S:
    __slots__=('lk',)
    def __init__(s): s.lk=threading.Lock()
    def hold(self):
        with self.lk: time.sleep(1000)
    def want(self):
        with self.lk: pass
class D:
    cl = threading.Lock()
    def __init__(s): s._lock=threading.Lock()
    def hold(self):
        with self._lock: time.sleep(1000)
    def want(self):
        self._lock.acquire()
    def holdc(self):
        with self.cl: time.sleep(1000)
    def wantc(self):
        with D.cl: pass
@contextlib.contextmanager
def guarded(l):
    with l:
        yield
def cm_hold():
    with guarded(lock_g): time.sleep(1000)
def cm_want():
    with guarded(lock_g): pass
def rl_hold():
    with rl:
        with rl:
            time.sleep(1000)
def rl_want():
    rl.acquire()
def rl_want2():
    with rl: pass
def cw():
    with cond_g: cond_g.wait()
def cwl():
    with lock_g2:
        with cond_l: cond_l.wait_for(lambda: False)
def want2():
    with lock_g2: pass
def evw(): ev.wait()
def evt(): ev.wait(900)
def semw():
    with sem: pass
def barw(): bar.wait()
def qget(): jobs.get()
def sqget(): sq.get()
def futr(): fut.result()
def joiner(): ts['evw'].join()
def local_pair():
    a=threading.Lock()
    def h():
        with a: time.sleep(1000)
    def w():
        with a: pass
    t=threading.Thread(target=h,name='lh',daemon=True); t.start(); time.sleep(.05)
    with a: pass
def loophold():
    with hl:
        while True:
            time.sleep(1000)
            if ev.is_set(): break
hl=threading.Lock()
def wanthl():
    hl.acquire(True, 800)
def raw_hold():
    raw.acquire(); time.sleep(1000)
def raw_want(): raw.acquire()
raw=threading.Lock()
pr,pw=os.pipe()
rd=os.fdopen(pr,'rb')
def rd1(): rd.read(10)
def rd2(): time.sleep(.1); rd.read(10)
s=S(); d=D()
ts={}
for f in [s.hold,s.want,d.hold,d.want,d.holdc,d.wantc,cm_hold,cm_want,rl_hold,rl_want,rl_want2,cw,cwl,want2,evw,evt,semw,barw,qget,sqget,futr,joiner,local_pair,loophold,wanthl,raw_hold,raw_want,rd1,rd2]:
    n=f.__qualname__
    t=threading.Thread(target=f,name=n,daemon=True); ts[n]=t; t.start(); time.sleep(.02)
signal.alarm(300)
time.sleep(0.2)
print("ready %d" % os.getpid(), flush=True)
time.sleep(1000)
