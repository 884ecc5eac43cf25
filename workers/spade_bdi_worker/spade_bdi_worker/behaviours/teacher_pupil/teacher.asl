// The teacher never acts. From what pupils report it learns where actions lead, and how far each state is from a
// reward. It advises the way there; before one is known, actions that nobody has tried yet. Its map holds in worlds
// where an action always has the same effect.

+!advise(S)[source(Pupil)] : far(S, D) & leads(S, A, T) & far(T, D - 1)
  <- .send(Pupil, achieve, follow(S, A)).

+!advise(S)[source(Pupil)] : far(S, 1) & rewarding(S, A)
  <- .send(Pupil, achieve, follow(S, A)).

+!advise(S)[source(Pupil)] : action(A) & not tried(S, A)
  <- .send(Pupil, achieve, follow(S, A)).

+!advise(S)[source(Pupil)]
  <- .send(Pupil, achieve, decide(S)).

+!note(S, A, R, T, How) : tried(S, A).

+!note(S, A, R, T, How) : R > 0
  <- +tried(S, A);
     +rewarding(S, A);
     !reach(S, 1).

+!note(S, A, R, T, ended)
  <- +tried(S, A).         // it ended without a reward: a trap

+!note(S, A, R, T, How)
  <- +tried(S, A);
     +leads(S, A, T);
     !extend(S, T).

+!extend(S, T) : far(T, D)
  <- !reach(S, D + 1).

+!extend(_, _).

// A shorter way to a reward: pass it on to the states that lead here.
+!reach(S, D) : far(S, Known) & Known <= D.

+!reach(S, D)
  <- .abolish(far(S, _));
     +far(S, D);
     for (leads(Before, _, S)) {
       !reach(Before, D + 1);
     }.
