import sys, time, resource, numpy as np, torch, antifreeze
T=torch.utils.data.DataLoader; A=antifreeze.DataLoader
class Img(torch.utils.data.Dataset):
    def __init__(s): s.x=torch.randn(64,3,224,224)
    def __len__(s): return 64*60
    def __getitem__(s,i): return s.x[i%64].clone()
class Tiny(torch.utils.data.Dataset):
    def __init__(s): s.x=torch.randn(200000,16); s.y=torch.zeros(200000,dtype=torch.int64)
    def __len__(s): return 200000
    def __getitem__(s,i): return s.x[i],s.y[i]
class Tok(torch.utils.data.Dataset):
    def __init__(s): g=np.random.default_rng(0); s.n=g.integers(16,1024,20000).tolist(); s.t=torch.arange(1024)
    def __len__(s): return 20000
    def __getitem__(s,i): return s.t[:s.n[i]]
def pad(b): return torch.nn.utils.rnn.pad_sequence(b,batch_first=True)
def cpu(who): r=resource.getrusage(who); return r.ru_utime+r.ru_stime
def run(C,ds,bs,W,**k):
    l=C(ds,batch_size=bs,num_workers=W,**k); t=time.perf_counter(); p=time.process_time(); c=cpu(resource.RUSAGE_CHILDREN)
    for b in l: pass
    t=time.perf_counter()-t; p=time.process_time()-p; del l
    return len(ds)/t, p/len(ds)*1e6, (cpu(resource.RUSAGE_CHILDREN)-c)/len(ds)*1e6
for name,ds,bs,k in [("tiny",Tiny(),256,{}),("tok",Tok(),64,dict(collate_fn=pad)),("img",Img(),64,{})]:
    for W in (0,2):
        r={}
        for C in (T,A)*3: r.setdefault(C,[]).append(run(C,ds,bs,W,**k))
        m={C:max(v) for C,v in r.items()}
        print(name,W,*("%s %.0f/s parent %.2f us workers %.2f us |"%(C.__module__.split(".")[0],*m[C]) for C in (T,A)),"ratio %.2f"%(m[A][0]/m[T][0]),flush=True)
